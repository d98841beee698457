"""Names below localhost lead to the loopback, as they do where systemd-resolved or libnss-myhostname looks them up."""

import socket

system = socket.getaddrinfo


def getaddrinfo(host, *rest, **more):
    name = host.decode() if isinstance(host, bytes) else host
    return system("127.0.0.1" if name and name.endswith(".localhost") else host, *rest, **more)


socket.getaddrinfo = getaddrinfo
