use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:\n";

/// A system in a directory. Only root may give files away, so for other users the account is the one that runs the tests.
struct Image {
    directory: TempDir,
    account: Account,
    gid: u32,
}

impl Image {
    fn new(files: &[(&str, &str)]) -> Image {
        let directory = tempfile::tempdir().unwrap();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let account = Account { uid: if uid == 0 { 1000 } else { uid }, ..Account::e2b() };
        let image = Image { directory, gid: if uid == 0 { account.uid } else { gid }, account };
        for (path, text) in files {
            image.write(path, text);
        }
        if uid != 0 {
            image.write("/etc/group", &format!("user:x:{gid}:\n"));
        }
        image
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(&path[1..])
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.at(path)).unwrap().mode() & 0o7777
    }

    fn owner(&self, path: &str) -> (u32, u32) {
        let data = fs::symlink_metadata(self.at(path)).unwrap();
        (data.uid(), data.gid())
    }

    fn make(&self) -> Result<(), AccountError> {
        make(self.directory.path(), &self.account, None)
    }

    fn user(&self) -> User {
        Users::read_below(self.directory.path()).find("user").unwrap()
    }
}

#[test]
fn an_image_of_debian_gets_the_account() {
    let image = Image::new(&[
        ("/etc/passwd", PASSWD),
        ("/etc/shadow", "root:*:19000:0:99999:7:::"),
        ("/etc/gshadow", "root:*::\n"),
        ("/etc/skel/.profile", "# profile\n"),
        ("/etc/sudoers", "Defaults env_reset\n@includedir /etc/sudoers.d\n"),
        ("/bin/bash", ""),
    ]);
    symlink("/etc/shadow", image.at("/etc/skel/link")).unwrap();
    image.make().unwrap();
    let user = image.user();
    assert_eq!((user.uid, user.gid, user.home.to_str()), (image.account.uid, image.gid, Some("/home/user")));
    assert!(image.read("/etc/passwd").starts_with(PASSWD));
    assert!(image.read("/etc/passwd").ends_with(":/home/user:/bin/bash\n"));
    // The last line of the file had no end.
    assert_eq!(image.read("/etc/shadow"), "root:*:19000:0:99999:7:::\nuser:*::0:99999:7:::\n");
    assert_eq!(image.read("/etc/gshadow"), "root:*::\nuser:!::\n");
    assert_eq!(image.read("/etc/sudoers.d/forkd-user"), "user ALL=(ALL:ALL) NOPASSWD: ALL\n");
    assert_eq!((image.mode("/etc/sudoers.d/forkd-user"), image.mode("/home/user")), (0o440, 0o755));
    assert_eq!(image.read("/home/user/.profile"), "# profile\n");
    assert!(!image.at("/home/user/link").exists());
    for path in ["/home/user", "/home/user/.profile"] {
        assert_eq!(image.owner(path), (user.uid, user.gid), "{path}");
    }
    // Again, nothing changes.
    let files = ["/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/sudoers.d/forkd-user"];
    let before = files.map(|file| image.read(file));
    image.make().unwrap();
    assert_eq!(files.map(|file| image.read(file)), before);
}

#[test]
fn directories_of_local_programs_are_the_users() {
    let image =
        Image::new(&[("/etc/passwd", PASSWD), ("/usr/local/lib/python3/site.py", ""), ("/usr/lib/x", "")]);
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), image.at("/usr/local/man")).unwrap();
    let before = image.owner("/usr/lib");
    image.make().unwrap();
    let uid = image.user().uid;
    for path in ["/usr/local", "/usr/local/lib", "/usr/local/lib/python3"] {
        assert_eq!(image.owner(path), (uid, before.1), "{path}");
    }
    for path in ["/usr/local/lib/python3/site.py", "/usr/local/man", "/usr", "/usr/lib"] {
        assert_eq!(image.owner(path), before, "{path}");
    }
    assert_eq!(fs::metadata(outside.path()).unwrap().uid(), before.0);
}

#[test]
fn an_image_with_nothing_at_all_gets_it_too() {
    let image = Image::new(&[]);
    image.make().unwrap();
    assert!(image.read("/etc/passwd").ends_with("::/home/user:/bin/sh\n"));
    assert!(!image.at("/etc/shadow").exists());
    assert_eq!(image.owner("/home/user").0, image.account.uid);
    assert!(image.at("/etc/sudoers.d/forkd-user").exists());
}

#[test]
fn a_user_of_that_name_stays_who_it_is() {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let passwd = format!("user:x:{uid}:{gid}::/home/elsewhere:/bin/zsh\n");
    let image = Image::new(&[("/etc/passwd", &passwd)]);
    image.make().unwrap();
    assert_eq!(image.read("/etc/passwd"), passwd);
    for home in ["/home/elsewhere", "/home/user"] {
        assert_eq!(image.owner(home), (uid, gid), "{home}");
    }
}

#[test]
fn an_id_of_somebody_else_is_not_shared() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let image = Image::new(&[
        ("/etc/passwd", "node:x:1000:1000::/home/node:/bin/bash\nnext:x:1001:1001::/:\n"),
        ("/etc/group", "node:x:1000:\nstaff:x:1002:\n"),
    ]);
    image.make().unwrap();
    let user = image.user();
    assert_eq!((user.uid, user.gid), (1002, 1003));
    assert_eq!(Users::read_below(image.directory.path()).by_uid(1000).unwrap().name, "node");
}

#[test]
fn a_home_of_root_is_handed_over_without_following_links() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let image = Image::new(&[("/home/user/app/main.py", "1"), ("/srv/secret", "x")]);
    symlink(image.at("/srv"), image.at("/home/user/link")).unwrap();
    image.make().unwrap();
    for path in ["/home/user", "/home/user/app", "/home/user/app/main.py", "/home/user/link"] {
        assert_eq!(image.owner(path), (1000, 1000), "{path}");
    }
    assert_eq!((image.owner("/srv"), image.owner("/srv/secret")), ((0, 0), (0, 0)));
}

#[test]
fn rules_of_sudo_go_where_it_looks_for_them() {
    let image = Image::new(&[("/etc/sudoers", "root ALL=(ALL) ALL")]);
    for _ in 0..2 {
        image.make().unwrap();
        assert_eq!(image.read("/etc/sudoers"), "root ALL=(ALL) ALL\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n");
    }
    assert!(!image.at("/etc/sudoers.d").exists());
}

#[test]
fn a_sudo_is_put_where_there_is_none() {
    let image = Image::new(&[("/program", "ours"), ("/bin/sh", "")]);
    let make = || make(image.directory.path(), &image.account, Some(&image.at("/program")));
    make().unwrap();
    assert_eq!((image.read("/bin/sudo"), image.mode("/bin/sudo")), ("ours".into(), 0o4755));
    // That of a package replaces it and stays.
    image.write("/bin/sudo", "theirs");
    make().unwrap();
    assert_eq!(image.read("/bin/sudo"), "theirs");
}

#[test]
fn names_that_would_mean_something_else_are_refused() {
    let image = Image::new(&[]);
    for name in ["", "1000", "a:b", "a\nroot", "-x", "Root", "a b", "../x", &"x".repeat(33)] {
        let account = Account { name: name.into(), ..Account::e2b() };
        assert!(
            matches!(make(image.directory.path(), &account, None), Err(AccountError::Name(_))),
            "{name:?}"
        );
    }
    for home in ["", "home", "/a:b", "/a\nb"] {
        let account = Account { home: home.into(), ..Account::e2b() };
        assert!(
            matches!(make(image.directory.path(), &account, None), Err(AccountError::Home(_))),
            "{home:?}"
        );
    }
    assert_eq!(
        fs::read_dir(image.directory.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name() != "etc")
            .count(),
        0
    );
}

proptest! {
    /// Whatever the image's files are, the account can be found in them afterwards, and what was there still is.
    #[test]
    fn any_files_may_be_there(passwd in "[a-z:0-9\\n#]{0,80}", group in "[a-z:0-9\\n]{0,80}") {
        prop_assume!(rustix::process::geteuid().is_root());
        let image = Image::new(&[("/etc/passwd", &passwd), ("/etc/group", &group)]);
        if image.make().is_ok() {
            prop_assert!(Users::read_below(image.directory.path()).find("user").is_ok());
            prop_assert!(image.read("/etc/passwd").starts_with(&passwd));
            prop_assert!(image.read("/etc/group").starts_with(&group));
        }
    }
}
