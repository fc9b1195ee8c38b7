package client

// Always are the families without which no decision is complete.
var Always = always
