package main

import (
	"fmt"
	"math"
	"time"
)

// notes say under the tables what their figures are, and whether they mean anything.
func (f findings) notes() []string {
	notes := []string{"Latencies in milliseconds, of successful requests. " + sentence(f.options.plusMinus())}
	if !f.options.engine.realTime() || f.late == 0 {
		return notes
	}
	if f.late > tooLate {
		return append(notes, busy(f.late))
	}
	return append(notes, fmt.Sprintf("The machine was quiet enough: 99 %% of its timers were at most %s ms late (limit: %s ms).",
		figure(millis(f.late)), figure(millis(tooLate))))
}

// plusMinus says what stands behind ±.
func (o options) plusMinus() string {
	switch {
	case o.engine.name() == "dns" && o.runs > 1:
		return fmt.Sprintf("medians of %d runs, ± half the 95 %% bootstrap interval of all their calls", o.runs)
	case o.engine.name() == "dns":
		return "± is half the 95 % bootstrap interval of all calls"
	case o.runs > 1:
		return fmt.Sprintf("medians of %d runs, ± half their range", o.runs)
	default:
		return "± is half of a 95 % interval, from how much ten consecutive parts of the run differ, and never less than for independent calls"
	}
}

// busy says that figures mean nothing at such a lateness of timers.
func busy(late time.Duration) string {
	return fmt.Sprintf("THIS MACHINE IS TOO BUSY: 1 %% of its timers are more than %s ms late (limit: %s ms). "+
		"Figures in real time mean nothing then. Wait until it is quiet, or use -engine virtual, which no machine disturbs.",
		figure(millis(late)), figure(millis(tooLate)))
}

// about says how long something takes.
func about(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("this takes about %.0f seconds", max(d.Seconds(), 1))
	}
	return fmt.Sprintf("this takes about %.0f minutes", math.Round(d.Minutes()))
}
