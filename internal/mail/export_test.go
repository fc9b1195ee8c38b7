package mail

var Loopback = loopback
