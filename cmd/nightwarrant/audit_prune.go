package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

func (p program) auditRedact() *cobra.Command {
	var issuer, subject, reason string
	var rows []int64
	c := &cobra.Command{Use: "redact", Short: "Take out who a member is, of the audit records that name the member; every proof stays", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.Flags().StringVar(&issuer, "of-issuer", "", "`ISSUER` of the member's envelopes")
	c.Flags().StringVar(&subject, "of-subject", "", "the member's `SUBJECT` there")
	c.Flags().StringVar(&reason, "reason", "", "`REASON` that is recorded: "+strings.Join(sequencer.Reasons, ", "))
	c.Flags().Int64SliceVar(&rows, "row", nil, "only the audit row with this `ID`; may be given several times")
	for _, name := range []string{"of-issuer", "of-subject", "reason"} {
		_ = c.MarkFlagRequired(name)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if !slices.Contains(sequencer.Reasons, reason) {
			return config.Wrong("--reason", "must be one of %s", strings.Join(sequencer.Reasons, ", "))
		}
		member := canonical.Digest(canonical.DomainMember, []byte(issuer), []byte(subject))
		return d.within(cmd.Context(), exportTimeout, func(ctx context.Context, pool *pgxpool.Pool) error {
			n, err := sequencer.Redact(ctx, pool, member, rows, reason)
			if err != nil {
				return fmt.Errorf("%d records were redacted, and not the others: %w", n, err)
			}
			return p.say("%d records do not say any more that they are about this member.\n", n)
		})
	}
	return c
}

func (p program) auditKeep() *cobra.Command {
	var days int
	c := &cobra.Command{Use: "keep", Short: "Set how long audit records stay in the database", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.Flags().IntVar(&days, "days", 0, "`DAYS` that they stay")
	_ = c.MarkFlagRequired("days")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			least, kept, err := sequencer.Keep(ctx, pool, days)
			if err == nil && !kept {
				err = config.Wrong("--days", "must be %d to 36500", least)
			}
			if err != nil {
				return err
			}
			return p.say("Audit records stay for %d days at least. Nothing is taken out before `nightwarrant audit prune`.\n", days)
		})
	}
	return c
}

func (p program) auditPrune() *cobra.Command {
	var before, file string
	var anchors []string
	c := &cobra.Command{Use: "prune", Short: "Take old audit records out of the database, once an export and an anchor have them; every proof stays", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	key := keyFlag(c, "key")
	c.Flags().StringVar(&before, "before", "", "`DAY` (UTC) before which they go, such as 2026-01-31")
	c.Flags().StringVar(&file, "export", "", "`FILE` that `nightwarrant audit export` has written; keep it")
	c.Flags().StringArrayVar(&anchors, "anchors", nil, "`FILE` of an anchor; may be given several times")
	for _, name := range []string{"before", "export", "anchors"} {
		_ = c.MarkFlagRequired(name)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		day, err := time.Parse(time.DateOnly, before)
		if err != nil {
			return config.Wrong("--before", "must be a day, such as 2026-01-31")
		}
		v, err := key()
		if err != nil {
			return err
		}
		kept, err := readAnchors(anchors)
		if err != nil {
			return err
		}
		b, err := readBundle(file, nil)
		if err != nil {
			return err
		}
		report, err := audit.Verify(b, v, kept)
		if err == nil && len(report.Findings) > 0 {
			err = fmt.Errorf("the export was tampered with: %s", report.Findings[0].Tamper)
		}
		if err != nil {
			return err
		}
		return d.within(cmd.Context(), exportTimeout, func(ctx context.Context, pool *pgxpool.Pool) error {
			plan, err := sequencer.PlanPrune(ctx, pool, day)
			if err == nil {
				err = b.Keeps(plan.From, plan.Size, plan.Root, v, kept)
			}
			if err != nil {
				return fmt.Errorf("nothing was taken out: %w", err)
			}
			rows, err := sequencer.Prune(ctx, pool, plan)
			if err != nil {
				return fmt.Errorf("%d records were taken out, and not the others: ask again: %w", rows, err)
			}
			return p.say("%d records before number %d were taken out. Their digests stay, and so does every proof; keep %s.\n", rows, plan.Size, file)
		})
	}
	return c
}
