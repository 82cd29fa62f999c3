package main

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"
)

// notes say under the tables what their figures are, and whether they mean anything.
func (f findings) notes() []string {
	of := "of successful requests"
	switch f.options.engine.name() {
	case "recursor":
		of = "with 10 s for failures"
	case "endpoints":
		of = "with 2 s for failures"
	}
	notes := append([]string{"Latencies in milliseconds, " + of + ". " + sentence(f.options.plusMinus())}, slices.Concat(f.bounds(), f.faultBounds(), f.storageBoundLines(), f.endpointBounds())...)
	if !f.options.engine.realTime() || f.late == 0 {
		return notes
	}
	limit := f.options.tooLate()
	if f.late > limit {
		return append(notes, f.options.busy(f.late))
	}
	return append(notes, fmt.Sprintf("The machine was quiet enough: 99 %% of its timers were at most %s ms late (limit: %s ms).",
		figure(millis(f.late)), figure(millis(limit))))
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

// tooLate is the lateness of timers from which figures mean nothing: see the constants of that name.
func (o options) tooLate() time.Duration {
	switch o.engine.name() {
	case "recursor":
		return tooLateToResolve
	case "faults":
		return tooLateToFail
	}
	return tooLate
}

// busy says that figures mean nothing at such a lateness of timers.
func (o options) busy(late time.Duration) string {
	return fmt.Sprintf("THIS MACHINE IS TOO BUSY: 1 %% of its timers are more than %s ms late (limit: %s ms). "+
		"Figures in real time mean nothing then. Wait until it is quiet, or use -engine virtual, which no machine disturbs.",
		figure(millis(late)), figure(millis(o.tooLate())))
}

// about says how long something takes.
func about(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("this takes about %.0f seconds", max(d.Seconds(), 1))
	}
	return fmt.Sprintf("this takes about %.0f minutes", math.Round(d.Minutes()))
}

// sentence gives a text a capital and a full stop.
func sentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:] + "."
}
