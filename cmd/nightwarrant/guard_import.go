package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/internal/openapidraft"
)

const maxSpecification = 16 << 20

func (p program) guardImport() *cobra.Command {
	return group("import", "Draft the operations of a guard from what describes an API", p.guardImportOpenAPI())
}

func (p program) guardImportOpenAPI() *cobra.Command {
	var o openapidraft.Options
	c := &cobra.Command{Use: "openapi FILE", Short: "Draft operations from a document of OpenAPI 3, for a guard's file and its Guard document", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := p.readBounded(args[0], maxSpecification)
			if err != nil {
				return err
			}
			d, err := openapidraft.Read(text, o)
			if err != nil {
				return err
			}
			_, err = d.WriteTo(p.out)
			return err
		}}
	c.Flags().StringVar(&o.Server, "server", "", "`URL` of the API, where the document names none or another")
	c.Flags().StringArrayVar(&o.Only, "operation", nil, "operation `ID`, or \"METHOD /path\", to draft; may be given more than once, all when it is not")
	return c
}

// readBounded reads a file, or what is on standard input, up to one byte more than most.
func (p program) readBounded(path string, most int64) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(p.in, most+1))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.LimitReader(f, most+1))
}
