// Names below localhost lead to the loopback, as they do where systemd-resolved or libnss-myhostname looks them up.
const dns = require('node:dns')

const { lookup } = dns
dns.lookup = (host, ...rest) => lookup(host.endsWith('.localhost') ? '127.0.0.1' : host, ...rest)
