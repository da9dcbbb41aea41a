//! The kits that new instances use.

use std::sync::atomic::Ordering;

use gantry_base::{clock::Ticks, ids::ProjectId};
use gantry_node::kits::{
    Service,
    kit::{InstalledKit, KitError},
};

use crate::control::context::ControlContext;

/// Time for which the presence of a kit is remembered, in milliseconds.
const KIT_LOOK_INTERVAL: Ticks = 5000;

/// Returns the kit that a new instance of a service uses: the newest one that starts.
pub(super) fn find_kit(
    context: &ControlContext,
    service: Service,
) -> Result<Option<InstalledKit>, KitError> {
    let now = context.clock.ticks();
    let shelf = &context.control_settings.services.shelf;
    let versions = &context.services.versions;
    shelf.find_unless(service, |version| versions.is_left(service, version, now))
}

/// Returns the version of the Data API of a project: the one that runs, or that the next request
/// starts. Without a program, the one that Gantry installs.
pub fn data_api_version(context: &ControlContext, project: ProjectId) -> String {
    let running = context.services.running(project, Service::Rest);
    let kit = match running {
        Some(running) => Some(running.kit.version.clone()),
        None => find_kit(context, Service::Rest)
            .ok()
            .flatten()
            .map(|kit| kit.version),
    };
    let version = kit.unwrap_or_else(|| gantry_node::kits::install::REST_VERSION.to_owned());
    // Without the number of its package.
    let program = version.split('-').next().unwrap_or_default();
    program.to_owned()
}

/// Returns whether Gantry runs this service for projects: a kit of it is found. A new kit is
/// noticed within five seconds.
pub fn has_kit(context: &ControlContext, service: Service) -> bool {
    let cached = &context.services.kits[service as usize];
    let (known, now) = (cached.load(Ordering::Relaxed), context.clock.ticks());
    if known > 1 && now.saturating_sub(known / 2) < KIT_LOOK_INTERVAL {
        return known % 2 == 1;
    }
    let found = context.control_settings.services.shelf.find(service);
    let is_found = !matches!(found, Ok(None));
    cached.store(now.max(1) * 2 + u64::from(is_found), Ordering::Relaxed);
    is_found
}
