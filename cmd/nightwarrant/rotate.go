package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/keys"
)

// keysRotate are the steps of a rotation, in their order. Each may be asked for
// again: what was done is not done twice.
func (p program) keysRotate() *cobra.Command {
	return group("rotate", "Change the keys of the cluster without a pause, step by step", p.rotatePrepare(), p.rotatePublish(),
		p.rotateStep(authority.Activate, "Sign with the published generation, when everybody may have heard of it"),
		p.rotateStep(authority.Retire, "End the generation before, when nothing that it signed is good any more"),
		p.rotateStep(authority.Withdraw, "Take back a published generation that signs nothing yet"), p.rotateTrim())
}

// keyState reads what the database says of the cluster's keys, all that there ever were.
func keyState(ctx context.Context, pool *pgxpool.Pool) (s authority.KeyState, current authority.Generation, err error) {
	if s, err = authority.ReadKeys(ctx, pool, true); err != nil {
		return s, current, err
	}
	current, ok := s.Of(keys.Current)
	if !ok {
		return s, current, errors.New("no key bundle is registered for this cluster: run `nightwarrant keys register` once")
	}
	return s, current, nil
}

// successor is a command that makes a bundle out of another and changes nothing else.
func (p program) successor(c *cobra.Command, by func(s authority.KeyState, k config.Keys, to string, host keys.Host) (keys.Identity, string, error)) *cobra.Command {
	k, d := bundleFlags(c), p.databaseFlags(c, "nw_operator")
	to := c.Flags().String("to", "", "the successor's `DIRECTORY`, new or empty")
	_ = c.MarkFlagRequired("to") // it is defined above
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		host, err := hostOf(k.Host)
		if err != nil {
			return err
		}
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			s, _, err := keyState(ctx, pool)
			if err != nil {
				return err
			}
			if _, unfinished := s.Of(keys.Previous); unfinished {
				return errUnfinished // its keys are still needed
			}
			id, said, err := by(s, *k, *to, host)
			if err == nil {
				err = p.sayIdentity(said, id)
			}
			return err
		})
	}
	return c
}

func (p program) rotatePrepare() *cobra.Command {
	c := &cobra.Command{Use: "prepare", Short: "Make the bundle that holds the next generation beside the one that signs", Args: cobra.NoArgs}
	record := provenanceFlag(c)
	return p.successor(c, func(s authority.KeyState, k config.Keys, to string, host keys.Host) (keys.Identity, string, error) {
		host, err := recordedBy(host, *record)
		if err != nil {
			return keys.Identity{}, "", err
		}
		current, _ := s.Of(keys.Current)
		id, err := keys.Prepare(k.Dir, k.IdentityFile, to, current.Registered.Generation, s.Newest(), host)
		return id, "Made the successor. Roll it out to every replica in the place of the bundle, as a whole; then publish this generation.", err
	})
}

func (p program) rotateTrim() *cobra.Command {
	c := &cobra.Command{Use: "trim", Short: "Make the bundle that holds the generation that signs alone, after a rotation", Args: cobra.NoArgs}
	return p.successor(c, func(s authority.KeyState, k config.Keys, to string, host keys.Host) (keys.Identity, string, error) {
		current, _ := s.Of(keys.Current)
		id, err := keys.Trim(k.Dir, k.IdentityFile, to, current.Registered.Generation, host)
		return id, "Made the successor, without the keys that have ended. Roll it out to every replica.", err
	})
}

var errUnfinished = errors.New("the rotation before is not over: the generation before must be retired, or cut off, first")

func (p program) rotatePublish() *cobra.Command {
	c := &cobra.Command{Use: string(authority.Publish), Short: "Announce the next generation of a prepared bundle; nothing is signed with it yet", Args: cobra.NoArgs}
	k, d := bundleFlags(c), p.databaseFlags(c, "nw_operator")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		bundle, err := openKeys(*k)
		if err != nil {
			return err
		}
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			s, current, err := keyState(ctx, pool)
			if err != nil {
				return err
			}
			next := bundle.Newest()
			if next.Generation <= current.Registered.Generation {
				return errors.New("the bundle holds no generation after the one that signs: make it with `nightwarrant keys rotate prepare`")
			}
			// It is proved here that both private keys are there: replicas can prove it only of what is registered.
			if _, err := bundle.Under([]keys.Registered{current.Registered, {Identity: next, State: keys.Next}}); err != nil {
				return err
			}
			done, err := authority.Rotate(ctx, pool, authority.Publish, current.Registered.Generation, next)
			return p.stepped(authority.Publish, s, next.Generation, done, err)
		})
	}
	return c
}

func (p program) rotateStep(step authority.Step, short string) *cobra.Command {
	c := &cobra.Command{Use: string(step), Short: short, Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			s, current, err := keyState(ctx, pool)
			if err != nil {
				return err
			}
			next := current.Identity // where there is none, this step was taken before, or there is nothing to take
			if g, ok := s.Of(keys.Next); ok && step != authority.Retire {
				next = g.Identity
			} else if g, ok := s.Of(keys.Withdrawn); ok && step == authority.Withdraw {
				next = g.Identity
			}
			done, err := authority.Rotate(ctx, pool, step, current.Registered.Generation, next)
			return p.stepped(step, s, next.Generation, done, err)
		})
	}
	return c
}

// stepped says what became of a step.
func (p program) stepped(step authority.Step, s authority.KeyState, generation int64, done authority.Stepped, err error) error {
	if err != nil {
		return err
	}
	switch done.Verdict {
	case "ok", "again":
		return p.say("%s\n", map[authority.Step]string{
			authority.Publish:  fmt.Sprintf("Generation %d is published. It may sign after %s.", generation, s.Cache+s.Margin),
			authority.Activate: fmt.Sprintf("Generation %d signs. The one before can be retired after %s.", generation, s.Lifetime+s.Margin),
			authority.Retire:   "No generation before the one that signs is good for anything. `nightwarrant keys rotate trim` makes the bundle without it.",
			authority.Withdraw: "No generation is published that does not sign.",
		}[step])
	case "too_early":
		return fmt.Errorf("it is too early by %s: see `nightwarrant keys show`", done.Wait.Round(time.Millisecond))
	case "lacking":
		return fmt.Errorf("%d of the replicas that report have not got generation %d: roll the bundle out first", done.Lacking, generation)
	case "unfinished":
		return errUnfinished
	case "foreign":
		return &keys.MaterialError{Sentence: "the bundle's next generation is not one of this cluster's, or was registered before; nothing was changed"}
	}
	return errors.New("somebody else took a step at the same time, or there is nothing to take: see `nightwarrant keys show`")
}

func (p program) keysCutOff() *cobra.Command {
	c := &cobra.Command{Use: "cut-off", Short: "End every older generation at once, for keys that somebody else may have", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	generation := c.Flags().Int64("generation", 0, "the `NUMBER` of the generation that stays, or becomes the one that signs: everything older is dead")
	_ = c.MarkFlagRequired("generation") // it is defined above
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			s, _, err := keyState(ctx, pool)
			if err != nil {
				return err
			}
			verdict, dead, err := authority.CutOff(ctx, pool, s.Cluster, *generation)
			switch {
			case err != nil:
				return err
			case verdict != "ok":
				return fmt.Errorf("generation %d neither signs nor is published: nothing was changed", *generation)
			}
			return p.say("Generation %d signs. %d older ones are dead, with all that they signed.\n", *generation, dead)
		})
	}
	return c
}

// shownKeys is what `keys show` prints.
type shownKeys struct {
	Cluster     string            `json:"cluster"`
	CacheMS     int64             `json:"cache_ms"`
	MarginMS    int64             `json:"margin_ms"`
	LifetimeMS  int64             `json:"lifetime_ms"`
	Generations []shownGeneration `json:"generations"`
	Next        string            `json:"next"` // what may be done
}

type shownGeneration struct {
	Generation  int64      `json:"generation"`
	State       keys.State `json:"state"`
	KID         string     `json:"kid"`
	PublishedAt *time.Time `json:"published_at"`
	UsableAt    *time.Time `json:"usable_at"`
	ActivatedAt *time.Time `json:"activated_at,omitempty"`
	NeededUntil *time.Time `json:"needed_until,omitempty"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	Replicas    int64      `json:"replicas"` // that report now
	Lacking     int64      `json:"lacking"`  // of those, the ones that have not proved to hold it
}

func (p program) keysShow() *cobra.Command {
	asJSON := false
	c := &cobra.Command{Use: "show", Short: "Show the generations of the cluster's keys, and what may be done next", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			s, _, err := keyState(ctx, pool)
			if err != nil {
				return err
			}
			shown := showKeys(s)
			return p.print(asJSON, shown, func(b *strings.Builder) { shown.write(b) })
		})
	}
	return c
}

func showKeys(s authority.KeyState) shownKeys {
	out := shownKeys{Cluster: fmt.Sprintf("%x", s.Cluster), CacheMS: s.Cache.Milliseconds(), MarginMS: s.Margin.Milliseconds(), LifetimeMS: s.Lifetime.Milliseconds(), Next: mayFollow(s)}
	for _, g := range s.Generations {
		out.Generations = append(out.Generations, shownGeneration{g.Registered.Generation, g.State, g.KID, stamp(g.PublishedAt), stamp(g.UsableAt), stamp(g.ActivatedAt),
			stamp(g.NeededUntil), stamp(g.EndedAt), g.Replicas, g.Lacking})
	}
	return out
}

func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// mayFollow says what may be done, and when.
func mayFollow(s authority.KeyState) string {
	if previous, ok := s.Of(keys.Previous); ok {
		return "keys rotate retire" + from(previous.NeededUntil, s.Now)
	}
	next, ok := s.Of(keys.Next)
	switch {
	case !ok:
		return "keys rotate prepare, now"
	case next.Lacking > 0:
		return fmt.Sprintf("roll the bundle out: %d of %d replicas have not got generation %d", next.Lacking, next.Replicas, next.Registered.Generation)
	}
	return "keys rotate activate" + from(next.UsableAt, s.Now)
}

func from(t, now time.Time) string {
	if !t.After(now) {
		return ", now"
	}
	return " from " + t.UTC().Format(time.RFC3339) + ", in " + t.Sub(now).Round(time.Second).String()
}

func (k shownKeys) write(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "GENERATION\tSTATE\tKID\tPUBLISHED\tSIGNS SINCE\tENDED\tHELD BY") // into memory, like the rest
	for _, g := range k.Generations {
		held := "-"
		if g.EndedAt == nil {
			held = fmt.Sprintf("%d of %d", g.Replicas-g.Lacking, g.Replicas)
		}
		_, _ = fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Generation, g.State, g.KID, moment(g.PublishedAt), moment(g.ActivatedAt), moment(g.EndedAt), held)
	}
	_ = t.Flush()
	fmt.Fprintf(b, "next: %s\n", k.Next)
}

func moment(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}
