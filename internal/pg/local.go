package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrLocal says that somebody cancelled a commit's wait for the synchronous
// standby: the server answers as if all were well, and a failover may lose it.
var ErrLocal = errors.New("the wait for the standby was cancelled: the commit may be the primary's alone")

// local marks a connection whose present call was warned.
const local = "nightwarrant.local"

// heed takes the server's warning of that for what it is; verbs give no others.
func heed(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" && n.Code == "01000" {
		conn.CustomData()[local] = true
	}
}

// outcome tells what came of a call from its error and from what was heard.
func (c Conn) outcome(err error) (Outcome, error) {
	heard := c.conn.Conn().PgConn().CustomData()
	if err == nil && heard[local] != nil {
		err = ErrLocal
	}
	delete(heard, local)
	return Classify(err), err
}
