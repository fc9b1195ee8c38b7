package authority

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/elapsed"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Membership (B12). The database judges an answer of the directory in the
// transaction that it admits for; this replica asks, and remembers for a moment
// what it was told. What it remembers only saves questions: an answer that is too
// old, or about somebody else, is no answer there.
const (
	answerFor                    = 1500 * time.Millisecond // an answer is brought along; the database takes it for 2 s
	askWithin                    = 600 * time.Millisecond  // above the directory's own bound
	mostAnswers                  = 32                      // brought along where it is not known yet whose run it is
	mostMembers                  = 4096                    // whose answers are remembered
	mostLanes                    = 65536                   // whose member is remembered
	departAtOnce, mostDepartures = 100, 1000               // consents in one transaction, and such transactions
)

// askDirectory is a verb's question: whether a member is one still. It is never
// an answer to a caller, and has consumed nothing.
const askDirectory = "ask_directory"

var errAskDirectory = errors.New("the directory must be asked")

// answer is what the directory said, of whom, and since when that counts: by the
// database's clock, at or before the moment when it was asked.
type answer struct {
	directory.Answer
	at  time.Time
	age elapsed.Watch
}

// members asks the directory, once at a time for each member.
type members struct {
	directory directory.Directory
	asking    singleflight.Group
	lock      sync.Mutex
	said      map[[32]byte]answer // present ones
	lanes     map[string][32]byte
}

func newMembers(d directory.Directory) *members {
	return &members{directory: d, said: map[[32]byte]answer{}, lanes: map[string][32]byte{}}
}

// brought are answers on their way into a verb: two arrays of the same length.
type brought struct {
	members [][]byte
	at      []time.Time
}

func (b brought) with(member [32]byte, at time.Time) brought {
	return brought{append(b.members, member[:]), append(b.at, at)}
}

// known is what can be brought along for a lane: the answer about its member, or
// while nobody has said whose it is, some that are fresh.
func (m *members) known(lane string) (b brought) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if member, ok := m.lanes[lane]; ok {
		if a, ok := m.said[member]; ok && a.age.Elapsed() < answerFor {
			b = b.with(member, a.at)
		}
		return b
	}
	for member, a := range m.said {
		switch {
		case a.age.Elapsed() >= answerFor:
			delete(m.said, member)
		case len(b.at) < mostAnswers:
			b = b.with(member, a.at)
		}
	}
	return b
}

// ask asks about a member, for everybody who wants to know that at this moment. at
// is the database's time before. It ends with ctx, or when its time is over.
func (m *members) ask(ctx context.Context, who document.Owner, at time.Time) (answer, error) {
	member := memberOf(who)
	asked := m.asking.DoChan(string(member[:]), func() (any, error) {
		a := answer{at: at, age: elapsed.Start(nil)}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWithin) // others wait for it too
		defer cancel()
		var err error
		a.Answer, err = m.contained(ctx, who)
		m.remember(member, a)
		return a, err
	})
	select {
	case r := <-asked:
		return r.Val.(answer), r.Err
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// contained asks, and answers for a directory that breaks: it does not know.
func (m *members) contained(ctx context.Context, who document.Owner) (said directory.Answer, err error) {
	defer func() {
		if recover() != nil {
			said, err = directory.Unknown, errors.New("the question broke")
		}
	}()
	if said, err = m.directory.Member(ctx, who.Issuer, who.Subject); err != nil {
		said = directory.Unknown
	}
	return said, err
}

// remember keeps who is present, and at once forgets who is not.
func (m *members) remember(member [32]byte, a answer) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if a.Answer != directory.Present {
		delete(m.said, member)
		return
	}
	if len(m.said) >= mostMembers {
		clear(m.said)
	}
	m.said[member] = a
}

// belongs remembers whose a lane is. When it is handed over, the verb says so by asking.
func (m *members) belongs(lane string, member [32]byte) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if len(m.lanes) >= mostLanes {
		clear(m.lanes)
	}
	m.lanes[lane] = member
}

func memberOf(who document.Owner) [32]byte {
	return canonical.Digest(canonical.DomainMember, []byte(who.Issuer), []byte(who.Subject))
}

// question is whom a verb wants to be told about, in the columns about and asked_at.
type question struct {
	about *string
	at    time.Time
}

const questionColumns = `about, coalesce(asked_at, 'epoch')`

func (q *question) dest() []any { return []any{&q.about, &q.at} }

func (q *question) owner() (who document.Owner, err error) {
	if q.about == nil {
		return who, errors.New("a verb asked about nobody")
	}
	if err := canonical.Decode([]byte(*q.about), &who); err != nil || who.Issuer == "" || who.Subject == "" {
		return who, errors.New("a verb asked about nobody who can be known")
	}
	return who, nil
}

// forMember sends a verb that judges whether the member of a run is one still. It
// brings along what is remembered; when the verb asks, the directory is asked and
// the verb is sent once more. lane returns the lane's reference, as far as it is known.
func (a *Authority) forMember(ctx context.Context, verb string, by spent, lane func() string, q *question, send func(brought) error) error {
	err := send(a.members.known(lane()))
	if !errors.Is(err, errAskDirectory) {
		return err
	}
	who, err := q.owner()
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	told, err := a.asked(ctx, who, q.at)
	if err != nil {
		return a.unanswered(ctx, verb, by, err)
	}
	a.members.belongs(lane(), memberOf(who))
	var b brought // who has left has no answer to bring: the verb says what became of the run
	if told.Answer == directory.Present {
		b = b.with(memberOf(who), told.at)
	}
	if err = send(b); errors.Is(err, errAskDirectory) {
		return a.unanswered(ctx, verb, by, err)
	}
	return err
}

// asked asks the directory, and ends what a member has consented to who is gone.
func (a *Authority) asked(ctx context.Context, who document.Owner, at time.Time) (answer, error) {
	told, err := a.members.ask(ctx, who, at)
	switch {
	case err != nil:
		return told, err
	case told.Answer == directory.Absent:
		return told, a.depart(ctx, memberOf(who), told.at)
	case told.Answer != directory.Present:
		return told, errors.New("the directory does not know")
	}
	return told, nil
}

// stillMember asks about a person who wants to agree to something. It returns
// what the verb judges.
func (a *Authority) stillMember(ctx context.Context, verb string, m Actor) (time.Time, error) {
	now, err := a.databaseTime(ctx)
	if err != nil {
		return now, err
	}
	told, err := a.asked(ctx, document.Owner{Issuer: m.Issuer(), Subject: m.Subject()}, now)
	switch {
	case err != nil:
		return now, a.unanswered(ctx, verb, m.spent, err)
	case told.Answer != directory.Present:
		return now, a.refuse(ctx, verb, m.spent, api.Refuse(api.NotAMember))
	}
	return told.at, nil
}

// whileMember sends a verb by which a person agrees to something.
func (a *Authority) whileMember(ctx context.Context, verb string, m Actor, send func(asked time.Time) error) error {
	at, err := a.stillMember(ctx, verb, m)
	if err != nil {
		return err
	}
	if err = send(at); errors.Is(err, errAskDirectory) {
		return a.unanswered(ctx, verb, m.spent, err)
	}
	return err
}

// unanswered refuses because nobody has said in time that the member is one.
func (a *Authority) unanswered(ctx context.Context, verb string, by spent, cause error) error {
	return errors.Join(a.refuse(ctx, verb, by, api.Refuse(api.DirectoryUnavailable)), fault{api.Refuse(api.DirectoryUnavailable), cause})
}

// refuse is a refusal that no verb has written down, with its row unless the
// caller's quota is used up.
func (a *Authority) refuse(ctx context.Context, verb string, by spent, r *api.Refusal) error {
	if quiet, _ := a.standing(by.regardless()); quiet {
		return r
	}
	return a.noteRefusal(ctx, verb, by, r)
}

// depart ends the consents of a member who has left. Until it is done nothing is
// admitted for them either: there is no answer that they are present.
func (a *Authority) depart(ctx context.Context, member [32]byte, at time.Time) error {
	var all int64
	for range mostDepartures {
		var verdict string
		var ended int64
		if _, err := pg.Call(ctx, a.Pool, `SELECT verdict, ended FROM nw.depart($1, $2, $3)`, []any{member[:], at, departAtOnce}, &verdict, &ended); err != nil {
			return err
		}
		all += ended
		if verdict != "ok" || ended < departAtOnce {
			break // too old an answer ends nothing; whoever asks next goes on
		}
	}
	if all > 0 {
		a.Log.LogAttrs(ctx, slog.LevelInfo, "a member has left: consents have ended", slog.Int64("consents", all))
	}
	return nil
}

// laneOf is a lane that a capability names.
func laneOf(lane string) func() string { return func() string { return lane } }
