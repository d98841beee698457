//! The two files as tables.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{ROOT, UnknownUser, User};

/// The largest part of a file that is read. Real ones have a few KiB.
const MAX_FILE: u64 = 1 << 20;
/// A user in more groups than Linux allows a process (NGROUPS_MAX) cannot be started at all.
const MAX_GROUPS: usize = 65_536;

/// Both files, read once for one question.
#[derive(Debug, Default)]
pub struct Users {
    users: Vec<PasswdEntry>,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct PasswdEntry {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
}

#[derive(Debug)]
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

impl Users {
    /// Reads the guest's files. It blocks, for as long as reading two small files takes.
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    /// The same, of a system whose root is somewhere else.
    pub fn read_below(root: &Path) -> Self {
        Self::parse(&contents(&root.join("etc/passwd")), &contents(&root.join("etc/group")))
    }

    fn parse(passwd: &str, group: &str) -> Self {
        Self {
            users: passwd.lines().filter_map(user_line).collect(),
            groups: group.lines().filter_map(group_line).collect(),
        }
    }

    /// A user by name, or by number (`1000`, `1000:1000`) as images write it. `root` and numbers work without an entry.
    pub fn find(&self, name: &str) -> Result<User, UnknownUser> {
        if let Some(entry) = self.users.iter().find(|entry| entry.name == name) {
            return Ok(self.complete(entry));
        }
        let unknown = || UnknownUser(name.to_owned());
        if name == "root" {
            return Ok(made_up("root", ROOT, ROOT, "/root"));
        }
        let (user, group) = name.split_once(':').map_or((name, None), |(user, group)| (user, Some(group)));
        let mut found = match user.parse::<u32>() {
            Ok(uid) => self.by_uid(uid).unwrap_or_else(|| made_up(user, uid, uid, "/")),
            Err(_) if group.is_some() => self
                .users
                .iter()
                .find(|entry| entry.name == user)
                .map(|entry| self.complete(entry))
                .ok_or_else(unknown)?,
            Err(_) => return Err(unknown()),
        };
        if let Some(group) = group {
            found.gid = self.gid(group).ok_or_else(unknown)?;
            found.groups = vec![found.gid];
        }
        Ok(found)
    }

    pub fn by_uid(&self, uid: u32) -> Option<User> {
        self.users.iter().find(|entry| entry.uid == uid).map(|entry| self.complete(entry))
    }

    /// The name that a file's owner is shown with.
    pub fn user_name(&self, uid: u32) -> String {
        self.users
            .iter()
            .find(|entry| entry.uid == uid)
            .map_or_else(|| uid.to_string(), |entry| entry.name.clone())
    }

    pub fn group_name(&self, gid: u32) -> String {
        self.groups
            .iter()
            .find(|group| group.gid == gid)
            .map_or_else(|| gid.to_string(), |group| group.name.clone())
    }

    /// The id of a group by its name.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|group| group.name == name).map(|group| group.gid)
    }

    pub fn has_group(&self, gid: u32) -> bool {
        self.groups.iter().any(|group| group.gid == gid)
    }

    fn gid(&self, group: &str) -> Option<u32> {
        self.group(group).or_else(|| group.parse().ok())
    }

    fn complete(&self, entry: &PasswdEntry) -> User {
        let mut groups = vec![entry.gid];
        for group in self.groups.iter().filter(|group| group.members.contains(&entry.name)) {
            if groups.len() < MAX_GROUPS && !groups.contains(&group.gid) {
                groups.push(group.gid);
            }
        }
        User { name: entry.name.clone(), uid: entry.uid, gid: entry.gid, home: entry.home.clone(), groups }
    }
}

fn made_up(name: &str, uid: u32, gid: u32, home: &str) -> User {
    User { name: name.to_owned(), uid, gid, home: home.into(), groups: vec![gid] }
}

/// A missing file is an empty one. Bytes that are not UTF-8 spoil only their own entry.
fn contents(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // A read that fails half-way leaves what was read before.
        let _ = file.take(MAX_FILE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `name:password:uid:gid:comment:home:shell`
fn user_line(line: &str) -> Option<PasswdEntry> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    let home = fields.nth(1).filter(|home| home.starts_with('/')).unwrap_or("/");
    Some(PasswdEntry { name: name.to_owned(), uid, gid, home: home.into() })
}

/// `name:password:gid:member,member`
fn group_line(line: &str) -> Option<Group> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
    let gid = fields.nth(1)?.parse().ok()?;
    let members = fields.next().unwrap_or_default().split(',').filter(|member| !member.is_empty());
    Some(Group { name: name.to_owned(), gid, members: members.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\n# odd lines follow\nbroken:x:abc:0::/:\nshort:x\n\
                          user:x:1000:1001:,,,:/home/user:/bin/bash\nhomeless:x:7:7::relative:\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:user,root\nuser:x:1001:\ndocker:x:99:other,user\nagain:x:27:user\n";

    #[test]
    fn a_user_has_home_and_groups() {
        let users = Users::parse(PASSWD, GROUP);
        let user = users.find("user").unwrap();
        assert_eq!((user.uid, user.gid, user.home.to_str()), (1000, 1001, Some("/home/user")));
        assert_eq!(user.groups, [1001, 27, 99]);
        assert_eq!(users.find("homeless").unwrap().home.to_str(), Some("/"));
        assert_eq!((users.user_name(1000), users.user_name(5)), ("user".into(), "5".into()));
        assert_eq!((users.group_name(27), users.group_name(6)), ("sudo".into(), "6".into()));
    }

    #[test]
    fn users_by_number_as_images_name_them() {
        let users = Users::parse(PASSWD, GROUP);
        assert_eq!(users.find("1000").unwrap().name, "user");
        let with_group = users.find("1000:sudo").unwrap();
        assert_eq!((with_group.uid, with_group.gid, with_group.groups), (1000, 27, vec![27]));
        assert_eq!(users.find("user:5").unwrap().gid, 5);
        assert_eq!(users.find("4242").unwrap().uid, 4242);
        for unknown in ["nobody", "broken", "short", "", "user:nogroup", "x:1"] {
            assert!(users.find(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn root_is_there_without_any_file() {
        assert_eq!(Users::parse("", "").find("root").unwrap().uid, 0);
    }

    proptest! {
        #[test]
        fn any_file_is_read_without_a_panic(passwd in ".{0,200}", group in ".{0,200}", name in ".{0,12}") {
            let users = Users::parse(&passwd, &group);
            if let Ok(user) = users.find(&name) {
                prop_assert!(user.groups.contains(&user.gid));
            }
        }

        #[test]
        fn what_is_written_is_found(uid in any::<u32>(), gid in any::<u32>(), name in "[a-z_][a-z0-9_-]{0,30}") {
            let users = Users::parse(&format!("{name}:x:{uid}:{gid}::/h:\n"), "");
            let user = users.find(&name).unwrap();
            prop_assert_eq!((user.uid, user.gid, user.groups), (uid, gid, vec![gid]));
        }
    }
}
