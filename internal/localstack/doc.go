// Package localstack runs the two services that nightwarrant needs as private
// children of this process: a PostgreSQL cluster from the installed server
// binaries and a NATS server inside the process.
//
// It serves `nightwarrant demo`, `nightwarrant dev` and the tests. Nothing
// listens on TCP except NATS on 127.0.0.1, nothing survives this process, and
// the defaults are as durable as production: fsync, synchronous commit and
// JetStream's SyncAlways.
package localstack
