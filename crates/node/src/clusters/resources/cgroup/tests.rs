//! Tests of control groups on a model of the file system.

use super::*;

const MOUNTS_V1: &str = "\
25 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw
26 25 0:22 / /sys/fs/cgroup/unified rw,relatime shared:1 - cgroup2 cgroup rw
27 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
28 25 0:24 /docker/7f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
29 25 0:25 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
30 25 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
";
const OWN_V1: &str =
    "5:pids:/\n4:memory:/docker/7f/app\n2:cpu,cpuacct:/user\n1:name=systemd:/\n0::/session\n";

fn limits() -> ResourceLimits {
    ResourceLimits {
        memory_bytes: 300 << 20,
        processes: 77,
        cpu_weight: 50,
        io_weight: 200,
        ..ResourceLimits::default()
    }
}

/// A folder that looks like a group of version 2 with these controllers.
fn tree(dir: &Path, name: &str, controllers: &str) -> PathBuf {
    let group = dir.join(name);
    fs::create_dir(&group).unwrap();
    for (file, text) in [
        ("cgroup.controllers", controllers),
        ("cgroup.subtree_control", ""),
        ("cgroup.procs", ""),
    ] {
        fs::write(group.join(file), text).unwrap();
    }
    group
}

#[test]
fn groups_are_created_below_own_group_in_each_hierarchy() {
    let found = Mounts::parse(MOUNTS_V1, OWN_V1, None);
    assert_eq!(
        found.unified.as_deref(),
        Some(Path::new("/sys/fs/cgroup/unified/session"))
    );
    let legacy: Vec<_> = found
        .legacy
        .iter()
        .map(|h| (h.controller, h.parent.to_str().unwrap()))
        .collect();
    let expected = [
        ("memory", "/sys/fs/cgroup/memory/app"),
        ("pids", "/sys/fs/cgroup/pids/"),
        ("cpu", "/sys/fs/cgroup/cpu,cpuacct/user"),
    ];
    assert_eq!(legacy, expected);

    let named = Mounts::parse(MOUNTS_V1, OWN_V1, Some(Path::new("/gantry.slice")));
    assert_eq!(
        named.unified.as_deref(),
        Some(Path::new("/sys/fs/cgroup/unified/gantry.slice"))
    );
    assert!(
        named
            .legacy
            .iter()
            .all(|hierarchy| hierarchy.parent.ends_with("gantry.slice")),
        "{named:?}"
    );

    for (mounts, own) in [("", ""), ("junk", "junk"), (MOUNTS_V1, ""), ("", OWN_V1)] {
        assert_eq!(Mounts::parse(mounts, own, None), Mounts::default());
    }
    // A mount of another part of the hierarchy than the own one.
    assert_eq!(
        Mounts::parse("1 1 0:1 /a /m rw - cgroup2 c rw", "0::/b", None),
        Mounts::default()
    );
}

#[test]
fn version_2_requires_delegated_memory_and_pids() {
    let dir = tempfile::tempdir().unwrap();
    for (name, controllers, usable) in [
        ("full", "cpuset cpu io memory hugetlb pids", true),
        ("small", "memory pids", true),
        ("none", "", false),
        ("hugetlb", "hugetlb", false),
        ("no-pids", "memory cpu", false),
    ] {
        let group = tree(dir.path(), name, controllers);
        assert_eq!(delegate(&group, 1).is_some(), usable, "{name}");
    }
    assert_eq!(
        fs::read_to_string(dir.path().join("full/cgroup.subtree_control")).unwrap(),
        "+memory +pids +cpu +io"
    );
    // systemd starts Gantry in the subgroup already; the parent is the one that was delegated.
    let unit = tree(dir.path(), "unit", "memory pids");
    let supervisor = tree(&unit, SUPERVISOR, "");
    assert_eq!(delegate(&supervisor, 1).as_deref(), Some(unit.as_path()));
    assert_eq!(delegate(&dir.path().join("missing"), 1), None);
}

#[test]
fn version_2_limits_memory_without_swap_and_kills_whole_group() {
    let dir = tempfile::tempdir().unwrap();
    let groups = ControlGroups {
        version: Version::V2(dir.path().to_owned()),
        prefix: "gantry-1-".to_owned(),
    };
    let folder = dir.path().join("gantry-1-abc");
    fs::create_dir(&folder).unwrap();
    for weight in ["cpu.weight", "io.weight"] {
        fs::write(folder.join(weight), "default 100\n").unwrap();
    }
    assert_eq!(
        groups.make("abc", &limits()).unwrap(),
        std::slice::from_ref(&folder)
    );
    for (file, text) in [
        ("memory.max", "314572800"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", "77"),
        ("cpu.weight", "50"),
        ("io.weight", "200"),
    ] {
        assert_eq!(
            fs::read_to_string(folder.join(file)).unwrap(),
            text,
            "{file}"
        );
    }
    fs::write(
        folder.join("memory.stat"),
        "anon 4096\nfile 99999\nshmem 100\n",
    )
    .unwrap();
    fs::write(
        folder.join("memory.events"),
        "low 0\noom 9\noom_kill 3\noom_group_kill 1\n",
    )
    .unwrap();
    fs::write(folder.join("pids.current"), "12\n").unwrap();
    fs::write(folder.join("pids.events"), "max 5\n").unwrap();
    fs::write(folder.join("cpu.stat"), "usage_usec 2500999\nuser_usec 1\n").unwrap();
    let counts = Counts {
        memory_bytes: 4196,
        oom_kills: 3,
        processes: 12,
        forks_refused: 5,
        processor_ms: Some(2500),
    };
    assert_eq!(groups.counts("abc"), Some(counts));
    assert_eq!(groups.counts("other"), None);
}

#[test]
fn version_1_limits_each_hierarchy_and_memory_with_swap() {
    let dir = tempfile::tempdir().unwrap();
    let hierarchies = CONTROLLERS_V1.map(|controller| {
        let parent = dir.path().join(controller);
        fs::create_dir(&parent).unwrap();
        Hierarchy { controller, parent }
    });
    let usable = usable_v1(hierarchies.to_vec(), "p-").unwrap();
    assert_eq!(usable.len(), 4);
    assert_eq!(
        usable_v1(hierarchies[1..].to_vec(), "p-"),
        None,
        "nothing without memory"
    );
    let groups = ControlGroups {
        version: Version::V1(usable),
        prefix: "p-".to_owned(),
    };
    let folders = groups.folders("abc");
    for (folder, file) in
        folders
            .iter()
            .zip([None, None, Some("cpu.shares"), Some("blkio.bfq.weight")])
    {
        fs::create_dir(folder).unwrap();
        if let Some(file) = file {
            fs::write(folder.join(file), "").unwrap();
        }
    }
    groups.make("abc", &limits()).unwrap();
    for (folder, file, text) in [
        (0, "memory.limit_in_bytes", "314572800"),
        (0, "memory.memsw.limit_in_bytes", "314572800"),
        (1, "pids.max", "77"),
        (2, "cpu.shares", "512"),
        (3, "blkio.bfq.weight", "200"),
    ] {
        assert_eq!(
            fs::read_to_string(folders[folder].join(file)).unwrap(),
            text,
            "{file}"
        );
    }
}

#[test]
fn remove_stale_keeps_groups_of_other_folders() {
    assert_eq!(prefix(1, 2), prefix(1, 2));
    assert!(prefix(1, 2) != prefix(2, 1) && prefix(1, 2).starts_with("gantry-"));
    let dir = tempfile::tempdir().unwrap();
    for name in ["gantry-1-known", "gantry-1-gone", "gantry-2-gone", "other"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let groups = ControlGroups {
        version: Version::V2(dir.path().to_owned()),
        prefix: "gantry-1-".to_owned(),
    };
    groups.remove_stale(&|cluster| cluster == "known").unwrap();
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["gantry-1-known", "gantry-2-gone", "other"]);
    assert!(!ControlGroups::none().enforced() && ControlGroups::none().folders("x").is_empty());
}
