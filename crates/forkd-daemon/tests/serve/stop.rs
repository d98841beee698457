//! The end of a daemon.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Answer, Request, read_all};
use crate::daemon::Daemon;

#[tokio::test]
async fn what_is_being_answered_is_answered() {
    let daemon = Daemon::start().await;
    let mut busy = daemon.tcp().connect().await;
    busy.write_all(&Request::get("/test/slow").bytes()).await.unwrap();
    let mut idle = daemon.unix().connect().await;
    let mut half = daemon.unix().connect().await;
    half.write_all(b"GET /test/slow HTTP/1.1\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (address, socket) = (daemon.address, daemon.socket.clone());
    daemon.handle.stop();
    let begun = Instant::now();
    assert_eq!(read_all(&mut idle).await, "");
    assert_eq!(read_all(&mut half).await, "");
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(Answer::read(&mut busy).await.body, "slow");
    daemon.task.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    assert!(!socket.exists());
}

#[tokio::test]
async fn what_takes_too_long_is_cut_off() {
    let daemon = Daemon::start_with(|config| config.limits.stop_time = Duration::from_millis(100)).await;
    let mut busy = daemon.tcp().connect().await;
    busy.write_all(&Request::get("/test/stuck").bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    daemon.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(read_all(&mut busy).await, "");
}
