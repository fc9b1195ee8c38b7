package exec

import (
	osexec "os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a run adds to the start of a command, to where the command itself runs, beside starting it plainly; and what its end takes.
func BenchmarkStart(b *testing.B) {
	s := newStage(b, "", func(c *Config) { c.Command, c.Report, c.Logger = []string{"/bin/true"}, nil, nil })
	var plain, ours, end time.Duration
	for b.Loop() {
		began := time.Now()
		cmd := osexec.CommandContext(b.Context(), "/bin/true")
		require.NoError(b, cmd.Start())
		plain += time.Since(began)
		require.NoError(b, cmd.Wait())
		began = time.Now()
		j, err := s.runner.begin(newHold())
		require.NoError(b, err)
		ours += time.Since(began)
		<-j.process.exited
		began = time.Now()
		require.NoError(b, j.finish(0))
		end += time.Since(began)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N) / 1000 }
	b.ReportMetric(ms(plain), "plain-ms/op")
	b.ReportMetric(ms(ours-plain), "added-ms/op")
	b.ReportMetric(ms(end), "end-ms/op")
}

// What the socket adds to one effect, whose hold answers at once.
func BenchmarkEffect(b *testing.B) {
	_, path := bare(b, newHold())
	b.Run("kept connection", func(b *testing.B) {
		c := client(b, path)
		for b.Loop() {
			status, _ := post(b, c, "/effects", `{"key":"a","parameters":{"n":1}}`)
			require.Equal(b, 200, status)
		}
	})
	b.Run("new connection", func(b *testing.B) {
		for b.Loop() {
			var a Answer
			require.NoError(b, Ask(b.Context(), path, "/effects", Request{Key: "a"}, &a))
		}
	})
}
