package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/dev"
)

// devIssuer, devIDP and devNATS are hidden: they are separate processes for
// demonstrations and development, and nothing of the authority knows them.
func (p program) devIssuer() *cobra.Command {
	c := &dev.Workloads{}
	cmd := p.process("dev-issuer", "Run a workload issuer, for development only", c, func(ctx context.Context) error {
		return dev.RunWorkloads(ctx, c, p.log())
	})
	cmd.Hidden = true
	return cmd
}

func (p program) devIDP() *cobra.Command {
	c := &dev.People{}
	cmd := p.process("dev-idp", "Run an identity provider, for development only", c, func(ctx context.Context) error {
		return dev.RunPeople(ctx, c, p.log())
	})
	cmd.Hidden = true
	return cmd
}

func (p program) devNATS() *cobra.Command {
	c := &dev.NATS{}
	cmd := p.process("dev-nats", "Run a NATS server, for development only", c, func(ctx context.Context) error {
		return dev.RunNATS(ctx, c, p.log())
	})
	cmd.Hidden = true
	return cmd
}
