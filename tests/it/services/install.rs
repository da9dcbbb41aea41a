//! Installing kits into the data folder.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use gantry_node::kits::{Service, install, shelf::KitShelf};

use super::kits;

#[tokio::test]
async fn installed_kit_is_verified_against_its_pinned_digest() {
    let installed = kits();
    let kit = KitShelf::new(None, installed.clone())
        .find(Service::Rest)
        .unwrap()
        .unwrap();
    install::verify(&installed, Service::Rest, &kit.version).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let program = copy
        .path()
        .join(format!("rest/{}/bin/postgrest", kit.version));
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    let mut content = fs::read(kit.program()).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    fs::write(&program, content).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let refused = install::verify(copy.path(), Service::Rest, &kit.version).unwrap_err();
    assert!(refused.to_string().contains("SHA-512"), "{refused}");
    install::remove(copy.path(), "rest", &kit.version).unwrap();
    let shelf = KitShelf::new(None, copy.path().to_owned());
    assert!(shelf.find(Service::Rest).unwrap().is_none());
    assert_eq!(fs::read_dir(copy.path().join("rest")).unwrap().count(), 0);
}
