package main

import (
	"cmp"
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"
)

// tableNotes returns the lines of text below the tables. They explain the figures, list the requirements of the engine
// and whether they are met, and say whether the machine was quiet.
func (f engineResults) tableNotes() []string {
	engine := f.options.engine.profile()
	notes := []string{"Latencies in milliseconds, " + cmp.Or(engine.population, "of successful requests") + ". " + toSentence(f.options.explainSpread())}
	if engine.checkBounds != nil {
		notes = append(notes, engine.checkBounds(f)...)
	}
	if f.late == 0 || !engine.runsInRealTime() {
		return notes
	}
	if f.isBusy() {
		return append(notes, engine.busyText(f.late))
	}
	return append(notes, fmt.Sprintf("The machine was quiet enough: 99 %% of its timers were at most %s ms late (limit: %s ms).",
		formatMillis(toMillis(f.late)), formatMillis(toMillis(engine.maxTimerDelay))))
}

// explainSpread returns the phrase that explains the values after ± in tables. It depends on the engine and the number
// of runs.
func (o options) explainSpread() string {
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

// isBusy reports whether the machine was too busy for measurements in real time: its timers were later than the engine
// tolerates.
func (f engineResults) isBusy() bool {
	engine := f.options.engine.profile()
	return engine.runsInRealTime() && f.late > engine.maxTimerDelay
}

// busyText returns the warning for a machine that is too busy. late is the measured lateness of its timers.
func (p profile) busyText(late time.Duration) string {
	return fmt.Sprintf("THIS MACHINE IS TOO BUSY: 1 %% of its timers are more than %s ms late (limit: %s ms). "+
		"Figures in real time mean nothing then. Wait until it is quiet, or use -engine virtual, which no machine disturbs.",
		formatMillis(toMillis(late)), formatMillis(toMillis(p.maxTimerDelay)))
}

// formatDuration returns a phrase for the expected duration of a run, in seconds or minutes.
func formatDuration(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("this takes about %.0f seconds", max(d.Seconds(), 1))
	}
	return fmt.Sprintf("this takes about %.0f minutes", math.Round(d.Minutes()))
}

// toSentence returns the phrase s as a sentence, with a capital letter and a full stop.
func toSentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:] + "."
}
