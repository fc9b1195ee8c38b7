package main

import (
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/crontab"
)

const maxCrontab = 1 << 20

func (p program) workerImport() *cobra.Command {
	return group("import", "Draft task documents from what starts a command today", p.workerImportCrontab())
}

func (p program) workerImportCrontab() *cobra.Command {
	var o crontab.Options
	c := &cobra.Command{Use: "crontab FILE", Short: "Draft a task document for each line of a crontab; - is standard input", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := p.readBounded(args[0], maxCrontab)
			if err != nil {
				return err
			}
			d, err := crontab.Read(text, o)
			if err != nil {
				return err
			}
			_, err = d.WriteTo(p.out)
			return err
		}}
	c.Flags().StringVar(&o.Zone, "zone", "", "`ZONE` of the machine that ran it, such as Europe/Berlin, for lines before any CRON_TZ")
	c.Flags().BoolVar(&o.System, "system", false, "it is a system's: the sixth word of each line is an account")
	return c
}
