package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/dev"
)

// devDirectory is hidden like the other stand-ins: a SCIM directory of members,
// and what lets one of them go.
func (p program) devDirectory() *cobra.Command {
	c := &dev.Directory{}
	cmd := p.process("dev-directory", "Run a SCIM directory of members, for development only", c, func(ctx context.Context) error {
		return dev.RunDirectory(ctx, c, p.log())
	})
	cmd.Hidden = true
	cmd.AddCommand(p.devMember("remove", "Let a member of the directory go", false), p.devMember("restore", "Take a member back", true))
	return cmd
}

func (p program) devMember(use, short string, active bool) *cobra.Command {
	var file string
	cmd := &cobra.Command{Use: use + " SUBJECT", Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		c := &dev.Directory{}
		if err := config.Load(file, c, p.env); err != nil {
			return err
		}
		return c.SetActive(cmd.Context(), args[0], active)
	}}
	cmd.Flags().StringVar(&file, "config", "", "the directory's YAML `FILE`")
	_ = cmd.MarkFlagRequired("config") // the flag is defined above
	return cmd
}
