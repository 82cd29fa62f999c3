package main

import (
	"cmp"
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"
)

// notes say under the tables what their figures are, and whether they mean anything.
func (f findings) notes() []string {
	engine := f.options.engine.profile()
	notes := []string{"Latencies in milliseconds, " + cmp.Or(engine.population, "of successful requests") + ". " + sentence(f.options.plusMinus())}
	if engine.bounds != nil {
		notes = append(notes, engine.bounds(f)...)
	}
	if f.late == 0 || !engine.runsInRealTime() {
		return notes
	}
	if f.isBusy() {
		return append(notes, engine.busyText(f.late))
	}
	return append(notes, fmt.Sprintf("The machine was quiet enough: 99 %% of its timers were at most %s ms late (limit: %s ms).",
		figure(millis(f.late)), figure(millis(engine.maxTimerDelay))))
}

// plusMinus says what stands behind ±.
func (o options) plusMinus() string {
	independent := o.engine.profile().independent
	switch {
	case independent && o.runs > 1:
		return fmt.Sprintf("medians of %d runs, ± half the 95 %% bootstrap interval of all their calls", o.runs)
	case independent:
		return "± is half the 95 % bootstrap interval of all calls"
	case o.runs > 1:
		return fmt.Sprintf("medians of %d runs, ± half their range", o.runs)
	default:
		return "± is half of a 95 % interval, from how much ten consecutive parts of the run differ, and never less than for independent calls"
	}
}

// isBusy reports whether the machine was too busy for the figures to mean anything.
func (f findings) isBusy() bool {
	engine := f.options.engine.profile()
	return engine.runsInRealTime() && f.late > engine.maxTimerDelay
}

// busyText says that figures mean nothing at such a lateness of timers.
func (p profile) busyText(late time.Duration) string {
	return fmt.Sprintf("THIS MACHINE IS TOO BUSY: 1 %% of its timers are more than %s ms late (limit: %s ms). "+
		"Figures in real time mean nothing then. Wait until it is quiet, or use -engine virtual, which no machine disturbs.",
		figure(millis(late)), figure(millis(p.maxTimerDelay)))
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
