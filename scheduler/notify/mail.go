package notify

import (
	"context"
	"errors"
	"fmt"
	netmail "net/mail"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/mail"
)

// Sender hands messages to a mail server; *mail.Client is one.
type Sender interface {
	Send(ctx context.Context, m mail.Message) error
	Ready(ctx context.Context) error
}

// Addresses knows where a member can be written to now; *directory.SCIM does.
type Addresses interface {
	Address(ctx context.Context, issuer, subject string) (netmail.Address, error)
}

// Mail tells members by mail. Where to is asked each time and kept nowhere.
type Mail struct {
	sender    Sender
	addresses Addresses
	operators string
}

// NewMail returns one. What is for somebody whom the directory does not have any
// more goes to the operators' address: nobody else could mend it.
func NewMail(s Sender, a Addresses, operators string) (*Mail, error) {
	if s == nil || a == nil || !mail.IsAddress(operators) {
		return nil, errors.New("mail needs a server, a directory and the operators' address")
	}
	return &Mail{s, a, operators}, nil
}

// Ready implements [Mailer].
func (m *Mail) Ready(ctx context.Context) error { return refusal(m.sender.Ready(ctx)) }

// Mail implements [Mailer]: references and links, and nothing that a member, a
// workload or a model wrote.
func (m *Mail) Mail(ctx context.Context, id, link string, told []Notice) error {
	text, err := letter(link, told)
	if err != nil {
		return err
	}
	to, gone, err := m.to(ctx, told[0].Owner)
	if err != nil {
		return err
	}
	if gone {
		text.Text = "This is for the owner of a task whom the directory does not have, and so it comes to you.\n\n" + text.Text
	}
	text.To, text.ID = to, id
	return refusal(m.sender.Send(ctx, text))
}

// to is the address of a member, and whether it is the operators' instead.
func (m *Mail) to(ctx context.Context, owner *Owner) (to string, gone bool, err error) {
	if owner == nil {
		return m.operators, true, nil
	}
	at, err := m.addresses.Address(ctx, owner.Issuer, owner.Subject)
	switch {
	case errors.Is(err, directory.ErrNoMember):
		return m.operators, true, nil
	case errors.Is(err, directory.ErrNoAddress), err == nil && !mail.IsAddress(at.Address):
		return "", false, &Refused{noAddress}
	case err != nil:
		return "", false, fmt.Errorf("the directory could not be asked for an address: %w", err)
	}
	return at.Address, false, nil
}

// noAddress stands where a mail server's code would: the mailbox is unavailable
// (RFC 5321, section 4.2.3).
const noAddress = 550

func refusal(err error) error {
	if r, ok := errors.AsType[*mail.Refused](err); ok {
		return &Refused{r.Code}
	}
	return err
}

// letter is the text about some notices of one member.
func letter(link string, told []Notice) (m mail.Message, err error) {
	var b strings.Builder
	for _, one := range told {
		k, err := one.known()
		if err != nil {
			return m, err
		}
		if m.Subject = strings.TrimSuffix(k.says, "."); len(told) > 1 {
			fmt.Fprintf(&b, "%s  ", moment(one.Due))
		}
		b.WriteString(k.says + "\n")
		if one.Expires != nil {
			fmt.Fprintf(&b, "Until %s.\n", moment(*one.Expires))
		}
		b.WriteString(one.link(link) + "\n\n")
	}
	if len(told) > 1 {
		m.Subject = fmt.Sprintf("%d notices about tasks of yours", len(told))
	}
	b.WriteString("This message grants nothing and asks for no answer. The page asks who is looking.\n")
	m.Text = b.String()
	return m, nil
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

var (
	_ Mailer    = (*Mail)(nil)
	_ Sender    = (*mail.Client)(nil)
	_ Addresses = (*directory.SCIM)(nil)
)
