//! An image from a registry boots, and its users, environment and entrypoint are what it says. The test that made the image is
//! `tests/agent/registry.rs`.

use std::time::Duration;

use forkd_tests::check;
use forkd_tests::measure::print;
use serde_json::json;

use super::client::Client;
use super::world::{Failure, World};

const MEMORY: u64 = 256 << 20;

pub async fn test(world: &World) -> Result<(), Failure> {
    let vm = world.bring_up("container", MEMORY, true).await?;
    let client = Client::new(&vm.agent);
    let run = async |script: &str| client.run(&["sh", "-c", script]).await;

    let mut started = String::new();
    for _ in 0..100 {
        started = run("cat /tmp/started 2>/dev/null; true").await?;
        if !started.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    check!(started == "1234 app hello argument /srv/app\n", "the entrypoint said {started:?}");
    let command = run("id -u; id -gn; pwd; echo $GREETING").await?;
    check!(command == "1234\napp\n/srv/app\nhello\n", "a command said {command:?}");
    let files =
        run("ls /srv/app; stat -c '%u %h' /srv/app/kept /srv/app/linked; cat /srv/app/linked").await?;
    check!(files == "kept\nlinked\n1234 2\n1234 2\nkept\n", "the layers became {files:?}");
    print(&json!({ "measure": "container_boots", "user": world.image().metadata.default_user }))
}
