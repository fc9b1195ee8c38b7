package queue

// Permissions are the subjects that one NATS user may use, and the prefix of
// its inboxes (nats.CustomInboxPrefix): with the usual one each user could read
// the answers of all others.
type Permissions struct {
	Publish, Subscribe []string
	Inbox              string
}

const (
	api      = "$JS.API."
	acks     = "$JS.ACK." + Stream + "."
	ownInbox = "_INBOX_nw_scheduler"
)

// SchedulerPermissions lets the schedulers publish, create what is absent and
// probe. They can delete and change nothing. Those of workers are in package
// natsqueue.
func SchedulerPermissions() Permissions {
	return Permissions{
		Publish: []string{
			runSubjects + "*", canarySubjects + "*",
			api + "INFO", api + "STREAM.INFO." + Stream, api + "STREAM.CREATE." + Stream,
			api + "CONSUMER.LIST." + Stream, api + "CONSUMER.INFO." + Stream + ".*",
			api + "CONSUMER.CREATE." + Stream + ".>", api + "CONSUMER.MSG.NEXT." + Stream + ".*",
			acks + ">",
		},
		Subscribe: []string{ownInbox + ".>"},
		Inbox:     ownInbox,
	}
}
