//! What the library knows of images and kernels, as the API says it. The command line says it alike where there is no daemon.

use forkd_api::code::Language;
use forkd_api::library::{Image, ImageConfig, ImageRecipe, ImageSource, ImageSummary, Kernel};
use forkd_api::snapshot::{ReadyProbe, WarmUp};
use forkd_api::token::DEFAULT_PROJECT;
use forkd_image::images::{self, Source};
use forkd_image::kernels::StoredKernel;
use forkd_image::recipe::{self, Probe, Recipe};

pub fn summary(image: &images::Image) -> ImageSummary {
    let metadata = &image.metadata;
    ImageSummary {
        id: metadata.id.to_string(),
        names: image.names.clone(),
        shared: image.shared,
        created_at_unix: metadata.created,
        size_bytes: metadata.size,
        disk_bytes: image.disk,
        default_user: metadata.default_user.clone(),
        // Until it is changed.
        projects: vec![DEFAULT_PROJECT.to_owned()],
        public: image.shared,
    }
}

pub fn image(image: &images::Image) -> Image {
    let config = image.metadata.config.clone();
    Image {
        summary: summary(image),
        source: source(&image.metadata.source),
        config: ImageConfig {
            env: config.env,
            user: config.user,
            workdir: config.workdir,
            entrypoint: config.entrypoint,
            cmd: config.cmd,
            labels: config.labels,
        },
        recipe: image.metadata.recipe.as_ref().map(of_recipe),
        layers: image.metadata.layers.iter().map(ToString::to_string).collect(),
    }
}

pub fn kernel(kernel: &StoredKernel) -> Kernel {
    let metadata = kernel.metadata.clone();
    Kernel {
        name: metadata.id,
        version: metadata.version,
        default: kernel.is_default,
        shared: kernel.shared,
        created_at_unix: metadata.created,
        modules: metadata.modules,
        missing: metadata.missing,
    }
}

fn source(source: &Source) -> ImageSource {
    match source.clone() {
        Source::Registry { reference, manifest } => ImageSource::Registry { reference, manifest },
        Source::Archive { file } => ImageSource::Archive { file },
        Source::Debian { suite, include, mirror } => ImageSource::Debian { suite, include, mirror },
        Source::Build { .. } => ImageSource::Build,
    }
}

fn of_recipe(recipe: &Recipe) -> ImageRecipe {
    let ready = recipe.ready.as_ref().map(|ready| {
        let (port, command) = match &ready.probe {
            Probe::Port(port) => (Some(*port), None),
            Probe::Command(command) => (None, Some(command.clone())),
        };
        ReadyProbe { port, command, timeout_secs: Some(ready.timeout_seconds) }
    });
    let warm_up = |(language, code): (&recipe::Language, &String)| {
        let language = match language {
            recipe::Language::Python => Language::Python,
            recipe::Language::Javascript => Language::Javascript,
            recipe::Language::Typescript => Language::Typescript,
            recipe::Language::Bash => Language::Bash,
            recipe::Language::R => Language::R,
            recipe::Language::Java => Language::Java,
        };
        WarmUp { language, code: code.clone() }
    };
    ImageRecipe {
        vcpus: recipe.vcpus,
        memory_mib: recipe.memory_mib,
        disk_mib: recipe.disk_mib,
        start: recipe.start.clone(),
        user: recipe.user.clone(),
        ready,
        warm_up: recipe.warm_up.iter().map(warm_up).collect(),
    }
}
