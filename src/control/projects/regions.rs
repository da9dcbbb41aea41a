//! Regions of the contract. A region is a label of nodes; without nodes that have one, any region
//! can be chosen, and means nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! regions {
    ($($variant:ident = $code:literal, $name:literal, $continent:ident, $group:ident;)*) => {
        /// A region of the contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[expect(missing_docs, reason = "each name is the region's code")]
        pub enum Region { $(#[serde(rename = $code)] $variant),* }

        impl Region {
            /// Every region.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the region with this code.
            pub fn of_code(code: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|region| region.code() == code)
            }

            /// Code on the wire.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// Display name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Continent of the region.
            pub const fn continent(self) -> Continent {
                match self { $(Self::$variant => Continent::$continent),* }
            }

            /// The group that includes the region.
            pub const fn group(self) -> SmartGroup {
                match self { $(Self::$variant => SmartGroup::$group),* }
            }
        }
    };
}

regions! {
    UsEast1 = "us-east-1", "East US (North Virginia)", NA, Americas;
    UsEast2 = "us-east-2", "East US (Ohio)", NA, Americas;
    UsWest1 = "us-west-1", "West US (North California)", NA, Americas;
    UsWest2 = "us-west-2", "West US (Oregon)", NA, Americas;
    ApEast1 = "ap-east-1", "East Asia (Hong Kong)", AS, Apac;
    ApSoutheast1 = "ap-southeast-1", "Southeast Asia (Singapore)", AS, Apac;
    ApNortheast1 = "ap-northeast-1", "Northeast Asia (Tokyo)", AS, Apac;
    ApNortheast2 = "ap-northeast-2", "Northeast Asia (Seoul)", AS, Apac;
    ApSoutheast2 = "ap-southeast-2", "Oceania (Sydney)", OC, Apac;
    EuWest1 = "eu-west-1", "West EU (Ireland)", EU, Emea;
    EuWest2 = "eu-west-2", "West Europe (London)", EU, Emea;
    EuWest3 = "eu-west-3", "West EU (Paris)", EU, Emea;
    EuNorth1 = "eu-north-1", "North EU (Stockholm)", EU, Emea;
    EuCentral1 = "eu-central-1", "Central EU (Frankfurt)", EU, Emea;
    EuCentral2 = "eu-central-2", "Central Europe (Zurich)", EU, Emea;
    CaCentral1 = "ca-central-1", "Canada (Central)", NA, Americas;
    ApSouth1 = "ap-south-1", "South Asia (Mumbai)", AS, Apac;
    SaEast1 = "sa-east-1", "South America (São Paulo)", SA, Americas;
}

/// A group of regions, of which the server chooses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each name is the group's code")]
pub enum SmartGroup {
    Americas,
    Emea,
    Apac,
}

impl SmartGroup {
    /// Display name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Americas => "Americas",
            Self::Emea => "Europe",
            Self::Apac => "Asia-Pacific",
        }
    }

    /// The region of a project for which only the group was chosen.
    pub const fn first(self) -> Region {
        match self {
            Self::Americas => Region::UsEast1,
            Self::Emea => Region::EuCentral1,
            Self::Apac => Region::ApSoutheast1,
        }
    }
}

/// A continent, as the contract abbreviates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the contract's abbreviations")]
pub enum Continent {
    NA,
    SA,
    EU,
    AF,
    AS,
    OC,
    AN,
}

/// The default region of a new project.
pub const DEFAULT: Region = Region::UsEast1;

#[derive(Debug, Serialize, JsonSchema)]
struct Group {
    name: &'static str,
    code: SmartGroup,
    r#type: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Specific {
    name: &'static str,
    code: Region,
    r#type: &'static str,
    provider: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Recommended {
    #[serde(rename = "smartGroup")]
    smart_group: Group,
    specific: Vec<Specific>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct All {
    #[serde(rename = "smartGroup")]
    smart_group: Vec<Group>,
    specific: Vec<Specific>,
}

/// Regions a project can be created in.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RegionsInfo")]
pub struct RegionsInfo {
    recommendations: Recommended,
    all: All,
}

/// The regions in which projects can be created, in the order of the contract. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableRegions(Vec<Region>);

impl AvailableRegions {
    /// Returns the regions with these codes, or all of them if there are none.
    pub fn of_codes(codes: Option<&[&str]>) -> Self {
        let is_available =
            |region: &&Region| codes.is_none_or(|codes| codes.contains(&region.code()));
        let regions: Vec<Region> = Region::ALL.iter().filter(is_available).copied().collect();
        if regions.is_empty() {
            Self(Region::ALL.to_vec())
        } else {
            Self(regions)
        }
    }

    /// The region of a project that chooses none.
    pub fn default(&self) -> Region {
        let first = self.0.first().copied().unwrap_or(DEFAULT);
        if self.0.contains(&DEFAULT) {
            DEFAULT
        } else {
            first
        }
    }

    /// The region of a project that chooses only a group. Without nodes in the group, a region of
    /// it, which then is not available.
    pub fn of_group(&self, group: SmartGroup) -> Region {
        if self.0.contains(&group.first()) {
            return group.first();
        }
        let mut regions = self.0.iter().copied();
        let of_group = regions.find(|region| region.group() == group);
        of_group.unwrap_or(group.first())
    }

    /// Returns the regions and their groups, and those recommended for `continent`.
    pub fn info(&self, continent: Option<Continent>) -> RegionsInfo {
        let near =
            |region: &&Region| continent.is_none_or(|continent| region.continent() == continent);
        let group = self
            .0
            .iter()
            .find(near)
            .map_or(self.default().group(), |region| region.group());
        let of_group = self.0.iter().filter(|region| region.group() == group);
        let recommended = of_group.map(|region| specific(*region)).collect();
        let has_region = |group: &SmartGroup| self.0.iter().any(|region| region.group() == *group);
        let groups = [SmartGroup::Americas, SmartGroup::Emea, SmartGroup::Apac];
        RegionsInfo {
            recommendations: Recommended {
                smart_group: smart_group(group),
                specific: recommended,
            },
            all: All {
                smart_group: groups
                    .into_iter()
                    .filter(has_region)
                    .map(smart_group)
                    .collect(),
                specific: self.0.iter().map(|region| specific(*region)).collect(),
            },
        }
    }
}

fn smart_group(code: SmartGroup) -> Group {
    Group {
        name: code.name(),
        code,
        r#type: "smartGroup",
    }
}

fn specific(code: Region) -> Specific {
    Specific {
        name: code.name(),
        code,
        r#type: "specific",
        provider: "AWS",
    }
}
