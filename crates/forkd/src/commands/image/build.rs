//! `forkd image build`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use forkd_api::library::{BuildImage, Image};
use forkd_client::{Client, ClientError};
use forkd_machine::Progress as _;
use forkd_source::context::{Context, MAX_DOCKERFILE, RECIPE};
use forkd_source::digest::{Digest, Hasher, Stream};

use super::show;
use crate::arguments::{BuildNetwork, ImageBuildOptions};
use crate::copy::written;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::progress::Progress;

/// What decides which files of the context count.
const IGNORE: &str = ".dockerignore";
/// Where a Dockerfile that is not in the context is in the archive, unless the context has this, too.
const APART: &str = "outside";

pub fn run(options: &ImageBuildOptions) -> Result<Exit, CliError> {
    let image = make(options)?;
    show(&image, &options.output)?;
    Ok(Exit::Success)
}

pub fn make(options: &ImageBuildOptions) -> Result<Image, CliError> {
    library::change(&options.daemon, async |client, progress| build(client, options, progress).await)
}

/// A digest of what would be sent: the context's files, the Dockerfile, the arguments.
pub fn key(options: &ImageBuildOptions) -> Result<Digest, CliError> {
    let context = Context::open(&options.directory)?;
    let Sent { files, dockerfile, .. } = sent(options, &context)?;
    let mut archive = Archive(Stream::default());
    context.write_whole(&files, &mut archive)?;
    let hasher = Hasher::new("forkd.toml dockerfile").part(dockerfile.as_bytes());
    let hasher = options
        .build_args
        .iter()
        .fold(hasher, |hasher, (name, value)| hasher.part(name.as_bytes()).part(value.as_bytes()));
    Ok(hasher.part(archive.0.finish().hex().as_bytes()).finish())
}

/// Takes the digest of an archive that goes nowhere.
struct Archive(Stream);

impl io::Write for Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn build(client: &Client, options: &ImageBuildOptions, progress: &Progress) -> Result<Image, CliError> {
    let context = Context::open(&options.directory)?;
    let Sent { files, dockerfile, apart } = sent(options, &context)?;
    let wanted = BuildImage {
        name: options.name.as_ref().map(ToString::to_string),
        dockerfile: Some(dockerfile),
        apart,
        target: options.target.clone(),
        build_arg: options.build_args.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        no_cache: options.no_cache,
        no_network: options.network == BuildNetwork::None,
        host_certs: options.host_certs,
        vcpus: Some(options.vcpus),
        memory_mib: Some(options.memory),
    };
    progress.step("sending the build context");
    let archive = written(move |pieces| {
        context.write_whole(&files, pieces).map_err(|error| io::Error::other(with_causes(&error)))
    });
    client.build_image(&wanted, archive, |told| progress.told(&told)).await.map_err(|error| match error {
        ClientError::Upload(source) => CliError::Send { path: options.directory.clone(), source },
        error => error.into(),
    })
}

/// What is sent beside the context's own files, and where the Dockerfile then is.
struct Sent {
    /// Also what `.dockerignore` excludes, which is needed all the same.
    files: Vec<(String, Vec<u8>)>,
    dockerfile: String,
    apart: Option<String>,
}

fn sent(options: &ImageBuildOptions, context: &Context) -> Result<Sent, CliError> {
    let path = dockerfile_of(options);
    let content = read(&path)?;
    let beside = directory_of(&path);
    let real = |path: &Path| {
        fs::canonicalize(path).map_err(|source| CliError::Dockerfile { path: path.to_owned(), source })
    };
    let inside = real(beside)?.strip_prefix(real(&options.directory)?).ok().map(Path::to_owned);
    let (directory, apart) = match inside.as_deref().map(Path::to_str) {
        Some(Some(directory)) => (directory.to_owned(), None),
        _ => {
            let apart = free_name(context);
            (apart.clone(), Some(apart))
        }
    };
    let within = |name: &str| match directory.as_str() {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    };
    let dockerfile = within(&path.file_name().unwrap_or_default().to_string_lossy());
    let mut files = vec![(dockerfile.clone(), content)];
    for (path, name) in
        [(options.directory.join(IGNORE), IGNORE.to_owned()), (beside.join(RECIPE), within(RECIPE))]
    {
        match read(&path) {
            Ok(content) => files.push((name, content)),
            Err(CliError::Dockerfile { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Sent { files, dockerfile, apart })
}

/// A name that the context does not have.
fn free_name(context: &Context) -> String {
    let mut name = APART.to_owned();
    while context.has(&name) {
        name.push('_');
    }
    name
}

fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}

fn dockerfile_of(options: &ImageBuildOptions) -> PathBuf {
    options.file.clone().unwrap_or_else(|| options.directory.join("Dockerfile"))
}

/// Where the Dockerfile is, and forkd.toml beside it.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let read = || {
        let mut content = Vec::new();
        let read = File::open(path)?.take(MAX_DOCKERFILE + 1).read_to_end(&mut content)?;
        if read as u64 > MAX_DOCKERFILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
    };
    read().map_err(|source| CliError::Dockerfile { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command, ImageCommand};

    #[test]
    fn forkd_toml_is_beside_the_dockerfile() {
        assert_eq!(directory_of(Path::new("Dockerfile")), Path::new("."));
        assert_eq!(directory_of(Path::new("a/Dockerfile.dev")), Path::new("a"));
        assert_eq!(directory_of(Path::new("/Dockerfile")), Path::new("/"));
    }

    fn options(words: &[&str]) -> ImageBuildOptions {
        match Arguments::parse_from([&["forkd", "image", "build"], words].concat()).command {
            Command::Image { command: ImageCommand::Build(options) } => options,
            other => panic!("{other:?}"),
        }
    }

    fn names(sent: &Sent) -> Vec<&str> {
        sent.files.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_key_is_of_everything_that_is_sent() {
        let here = tempfile::tempdir().unwrap();
        let path = |name: &str| here.path().join(name);
        fs::write(path("Dockerfile"), "FROM a\n").unwrap();
        fs::write(path("file"), "1").unwrap();
        let directory = here.path().to_str().unwrap();
        let key_of = |more: &[&str]| key(&options(&[&[directory], more].concat())).unwrap();
        let first = key_of(&[]);
        assert_eq!(key_of(&[]), first);
        assert_ne!(key_of(&["--build-arg", "A=1"]), first);
        fs::write(path("file"), "2").unwrap();
        let second = key_of(&[]);
        assert_ne!(second, first);
        fs::write(path("Dockerfile"), "FROM b\n").unwrap();
        assert_ne!(key_of(&[]), second);
        fs::write(path("file"), "1").unwrap();
        fs::write(path("Dockerfile"), "FROM a\n").unwrap();
        assert_eq!(key_of(&[]), first);
    }

    #[test]
    fn a_dockerfile_is_sent_from_wherever_it_is() {
        let here = tempfile::tempdir().unwrap();
        let directory = here.path().join("context");
        fs::create_dir_all(directory.join("sub/outside")).unwrap();
        for (path, text) in [
            ("context/Dockerfile", "FROM a\n"),
            ("context/.dockerignore", "*\n"),
            ("context/sub/Dockerfile.dev", "FROM b\n"),
            ("context/sub/forkd.toml", ""),
            ("Dockerfile", "FROM c\n"),
        ] {
            fs::write(here.path().join(path), text).unwrap();
        }
        let context = Context::open(&directory).unwrap();
        let directory = directory.to_str().unwrap();
        let plain = sent(&options(&[directory]), &context).unwrap();
        assert_eq!(names(&plain), ["Dockerfile", ".dockerignore"]);
        assert_eq!((plain.dockerfile.as_str(), plain.apart), ("Dockerfile", None));
        let below = format!("{directory}/sub/../sub/Dockerfile.dev");
        let below = sent(&options(&[directory, "-f", &below]), &context).unwrap();
        assert_eq!(names(&below), ["sub/Dockerfile.dev", ".dockerignore", "sub/forkd.toml"]);
        let outside = format!("{}/Dockerfile", here.path().display());
        let outside = options(&[&format!("{directory}/sub"), "-f", &outside]);
        let context = Context::open(&outside.directory).unwrap();
        let outside = sent(&outside, &context).unwrap();
        assert_eq!(names(&outside), ["outside_/Dockerfile"]);
        assert_eq!(outside.apart.as_deref(), Some("outside_"));
        assert!(sent(&options(&[&format!("{directory}/sub")]), &context).is_err());
    }
}
