package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/fsck"
)

func (p program) fsck() *cobra.Command {
	asJSON := false
	c := &cobra.Command{Use: "fsck", Short: "Hold every invariant against the database, without the verbs, as its owner", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "the owner")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := d.secret()
		if err != nil {
			return err
		}
		found, err := fsck.Check(cmd.Context(), url.Reveal())
		if err != nil {
			return err
		}
		result := struct {
			Invariants int              `json:"invariants"`
			Violations []fsck.Violation `json:"violations"`
		}{fsck.Count(), found}
		err = p.print(asJSON, result, func(b *strings.Builder) {
			for _, v := range found {
				fmt.Fprintln(b, "does not hold:", v)
			}
			fmt.Fprintf(b, "%d of %d invariants hold.\n", result.Invariants-len(found), result.Invariants)
		})
		if err == nil && len(found) > 0 {
			err = errors.New("the database is not sound: close the gate and look at the rows above")
		}
		return err
	}
	return c
}
