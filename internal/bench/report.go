package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

func (s S1) print(out io.Writer) {
	fmt.Fprintf(out, "S1  a proof with every check is %.2f raw verifications (%.1f µs to %.1f µs), %d allocations; %s, %s\n", s.Ratio, s.ProofUS, s.RawUS, s.Allocations,
		stated("ratio", s.Ratio <= s.Goal, s.Goal), stated("allocations", s.Allocations <= goalS1News, goalS1News))
}

func (s S2) print(out io.Writer) {
	fmt.Fprintf(out, "S2  %.0f durable claims a second are %.2f of %.0f one-statement transactions (%s); %s\n", s.Claims, s.Ratio, s.Floor, s.By, stated("ratio", s.Ratio >= s.Goal, s.Goal))
}

func (s S3) print(out io.Writer) {
	fmt.Fprintf(out, "S3  a claim is %.0f µs of the server's CPU, %.2f of its cryptography (%.0f µs); %s\n", s.ServerUS, s.Ratio, s.CryptoUS, stated("ratio", s.Ratio <= s.Goal, s.Goal))
}

func (s S5) print(out io.Writer) {
	cpu := ""
	if s.ServerUS != nil {
		cpu = fmt.Sprintf(" (%.0f µs of the server's CPU each)", *s.ServerUS)
	}
	fmt.Fprintf(out, "S5  %.0f admissions of a guard a second%s are %.2f of %.0f claims; %s\n", s.Admissions, cpu, s.Ratio, s.Claims, stated("ratio", s.Ratio >= s.Goal, s.Goal))
}

func (s S9) print(out io.Writer) {
	fmt.Fprintf(out, "S9  at %.0f claims a second p50 is %.1f ms and p99 %.1f ms, %.0f a second done; %s\n", s.Offered, s.P50, s.P99, s.Done, stated("p99", s.P99 <= s.Goal, s.Goal))
}

func (s S10) print(out io.Writer) {
	fmt.Fprintf(out, "S10 %.0f audit rows a second get their number in the signed log, %.2f of %.0f claims; %s\n", s.Records, s.Ratio, s.Claims, stated("ratio", s.Ratio >= s.Goal, s.Goal))
}

// stated says whether a goal was met. Missing one is a figure, not a failure.
func stated(what string, met bool, goal float64) string {
	if met {
		return fmt.Sprintf("the goal for %s, %g, is met", what, goal)
	}
	return fmt.Sprintf("the goal for %s, %g, is MISSED", what, goal)
}

var errNoCPU = errors.New("bench: the system does not tell a process's CPU")

// tick is the unit of /proc, the same on every Linux (proc(5), USER_HZ).
const tick = 10 * time.Millisecond

// cpuOf is the CPU that a process has used, in user and system mode.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return readCPU(string(text))
}

// readCPU reads fields 14 and 15 of /proc/PID/stat (proc(5)). The name before them may hold anything.
func readCPU(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, errNoCPU
	}
	user, userErr := strconv.ParseUint(fields[11], 10, 40)
	system, systemErr := strconv.ParseUint(fields[12], 10, 40)
	if userErr != nil || systemErr != nil {
		return 0, errNoCPU
	}
	return time.Duration(user+system) * tick, nil
}
