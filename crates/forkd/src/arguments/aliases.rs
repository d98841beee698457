//! Other spellings of options, those of docker and earlier ones, mean the same.

use super::command;

/// Two lines that are parsed to the same options.
const SAME: &[(&str, &str)] = &[
    ("forkd image build . --tag a", "forkd image build . --name a"),
    ("forkd image build . --tag a", "forkd image build . -t a"),
    ("forkd image pull a --tag b", "forkd image pull a --name b"),
    ("forkd image pull a --tag b", "forkd image pull a -t b"),
    ("forkd image debian --tag a", "forkd image debian --name a"),
    ("forkd image import a.tar --tag a", "forkd image import a.tar --name a"),
    ("forkd branch a --tag b", "forkd branch a -t b"),
    ("forkd logs a --tail 3", "forkd logs a -n 3"),
    ("forkd stats --no-stream", "forkd stats --once"),
    ("forkd events --after 1", "forkd events --since 1"),
    ("forkd kill a --force", "forkd rm -f a"),
    ("forkd rmi a --force", "forkd rmi -f a"),
    ("forkd image rm a --force", "forkd image rm -f a"),
    ("forkd kernel rm a --force", "forkd kernel rm -f a"),
    ("forkd machine rm --force", "forkd machine rm -f"),
    ("forkd machine stop --force", "forkd machine stop -f"),
    ("forkd snapshot tag a b --force", "forkd snapshot tag a b -f"),
    ("forkd fork a --metadata b=c", "forkd fork a --label b=c"),
    ("forkd ls --metadata b=c", "forkd ls --label b=c"),
    ("forkd snapshot build --dry-run", "forkd snapshot build -n"),
    ("forkd recipe build a --dry-run", "forkd recipe build a -n"),
    ("forkd snapshot push a b/c:d --sign-key k", "forkd snapshot push a b/c:d --key k"),
    ("forkd snapshot sign b/c:d --key k", "forkd snapshot sign b/c:d --sign-key k"),
    ("forkd machine status --name a", "forkd machine status --machine a"),
    ("forkd machine exec --name a -- true", "forkd machine exec --machine a -- true"),
    ("forkd exec a --workdir /b -- c", "forkd exec a --cwd /b -- c"),
];

fn parsed(line: &str) -> String {
    use clap::FromArgMatches;
    let words = shlex::split(line).unwrap();
    let matches = command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    format!("{:?}", super::Arguments::from_arg_matches(&matches).unwrap())
}

/// `forkd run` removes its sandbox unless --keep is given.
#[test]
fn the_option_rm_of_docker_run_is_accepted() {
    parsed("forkd run --rm a -- b");
    assert!(command().try_get_matches_from(["forkd", "run", "--rm", "--keep", "a"]).is_err());
}

#[test]
fn spellings_of_an_option_mean_the_same() {
    for (usual, other) in SAME {
        assert_eq!(parsed(usual), parsed(other), "{other}");
    }
}
