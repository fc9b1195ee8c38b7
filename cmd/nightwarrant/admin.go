package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

const maxRegistry = 1 << 20

func (p program) admin() *cobra.Command {
	return group("admin", "Operate the registry, as an operator whom the configuration names",
		p.adminApply(), p.adminRetire(), p.adminCutOff(), p.adminWithdraw(), p.adminRegistry(), p.adminTasks(), p.adminStranded(), p.adminAudit(), p.adminNATSConfig())
}

func (p program) adminApply() *cobra.Command {
	var file string
	c := p.personal("apply", "Enter the documents of a YAML file, all or none", cobra.NoArgs, func(ctx context.Context, who *person, asJSON bool, _ []string) error {
		text, err := p.readFile(file)
		if err != nil {
			return err
		}
		var out api.Applied
		if err := who.call(ctx, "POST", api.PathRegistry, "application/yaml", text, &out); err != nil {
			return err
		}
		return p.print(asJSON, out, func(b *strings.Builder) {
			table(b, "Nothing was applied.", out.Documents, "KIND\tNAME\tREVISION\tRESULT", func(d api.AppliedDocument) string {
				return fmt.Sprintf("%s\t%s\t%d\t%s", d.Kind, d.Name, d.Revision, d.Result)
			})
		})
	})
	c.Flags().StringVarP(&file, "file", "f", "", "YAML `FILE` of documents; - is standard input")
	_ = c.MarkFlagRequired("file") // the flag is defined above
	return c
}

func (p program) readFile(path string) ([]byte, error) {
	in := p.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // it was only read
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxRegistry+1))
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errors.New("there is no document in this file")
	}
	if err == nil && len(text) > maxRegistry {
		err = fmt.Errorf("a file of documents has at most %d bytes", maxRegistry)
	}
	return text, err
}

func (p program) adminRetire() *cobra.Command {
	return p.personal("retire KIND/NAME[/REVISION]", "End a registered revision, and what rests on it", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		in, err := retirement(args[0])
		if err != nil {
			return err
		}
		return answer(ctx, p, who, asJSON, "POST", api.PathRetire, in, func(b *strings.Builder, r api.Retirement) {
			fmt.Fprintf(b, "Retired %s %s, revision %d; tasks that lost authority by it: %d.\n", in.Kind, in.Name, in.Revision, r.Tasks)
		})
	})
}

// retirement reads what is to end. Without a revision it is the first, the
// only one that kinds without revisions have.
func retirement(text string) (api.RetireRequest, error) {
	parts := strings.Split(text, "/")
	r := api.RetireRequest{Revision: 1}
	if len(parts) == 3 {
		revision, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil || revision < 1 {
			return r, errors.New("a revision is a number from 1 on")
		}
		r.Revision = revision
	}
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return r, errors.New("name what is to end as KIND/NAME or KIND/NAME/REVISION, such as WorkloadRole/bookkeeper/2")
	}
	r.Kind, r.Name = parts[0], parts[1]
	return r, nil
}

func (p program) adminWithdraw() *cobra.Command {
	var in api.WithdrawRequest
	var key string
	cmd := p.personal("withdraw TASK", "Take a pre-approved key out of a task's consent: its owner will be asked again", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) (err error) {
		if in.Task, err = reference("a task", args[0]); err != nil {
			return err
		}
		in.Key = json.RawMessage(key)
		return answer(ctx, p, who, asJSON, "POST", api.PathWithdraw, in, func(b *strings.Builder, e api.Epoch) {
			fmt.Fprintf(b, "Withdrawn. Everything that this task had been given is dead since activation epoch %d, which is committed.\n", e.ActivationEpoch)
		})
	})
	cmd.Flags().StringVar(&in.Guard, "guard", "", "`NAME` of the guard")
	cmd.Flags().StringVar(&in.Action, "action", "", "the `ACTION`")
	cmd.Flags().StringVar(&in.Resource, "resource", "", "the `RESOURCE`")
	cmd.Flags().StringVar(&key, "key", "", "the pre-approved key, as the consent shows it: a `JSON` object")
	for _, name := range []string{"guard", "action", "resource", "key"} {
		_ = cmd.MarkFlagRequired(name) // the flags are defined above
	}
	return cmd
}
