// Llmendpoints asks two providers of language models, of which the first one stalls sometimes: after the role, a comment
// or a keep-alive. The first token of the answer decides which provider's answer the caller reads, whole. The other one is
// closed at once, and charges for what it has made until then. A hedge costs three of the budget's, because a token costs three times as
// much there, and there are a hundred in an hour at most.
//
//	go run ./examples/llmendpoints
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
)

const (
	prompts = 600
	workers = 20
	perHour = 100              // hedges
	hour    = 10 * time.Second // in this example, which ends sooner than yours
)

func main() {
	log.SetFlags(0)
	without, with, err := compare(prompts)
	if err != nil {
		log.Fatal(err)
	}
	without.print("first provider")
	with.print("with endpoints")
	s := with.snapshot.Stats
	fmt.Printf("\n%d of %d prompts were hedged, %d hedges won; at most %d in an hour, which is %v here\n",
		s.HedgedRequests, prompts, s.HedgeWins, perHour, hour)
	for i, b := range with.bills {
		fmt.Printf("%s: %d answers of %d tokens; %d closed before their end, after %d tokens; %d to pay\n",
			with.models[i], b.Answers, b.Tokens, b.Closed, b.LostTokens, (b.Tokens+b.LostTokens)*with.prices[i])
	}
}

// A report is what came of the prompts.
type report struct {
	first    []time.Duration // to the first token, sorted
	models   []string        // of the providers
	prices   []int
	bills    []bill
	snapshot hedge.Snapshot
}

func (r *report) print(name string) {
	n, paid, lost := len(r.first), 0, 0
	for i, b := range r.bills {
		paid += (b.Tokens + b.LostTokens) * r.prices[i]
		lost += b.LostTokens * r.prices[i]
	}
	fmt.Printf("%-14s  time to first token: p50 %6v   p99 %6v   max %6v   %d to pay, %d of that for answers that lost\n",
		name, r.first[n/2], r.first[n*99/100], r.first[n-1], paid, lost)
}

// compare asks so many prompts of the first provider, and as many with the choice of both: each worker asks both ways in turn, so
// that both meet the same stalls on the same machine.
func compare(prompts int) (without, with *report, err error) {
	first := func() *provider {
		return open(&provider{key: "key-of-first", model: "small-1", price: 1, first: 20 * time.Millisecond, stalls: true})
	}
	alone, near := first(), first()
	far := open(&provider{key: "key-of-second", model: "large-2", price: 3, first: 60 * time.Millisecond})
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 2 * workers
	defer func() {
		base.CloseIdleConnections()
		for _, p := range []*provider{alone, near, far} {
			p.Close()
		}
	}()
	hedged := hedge.New(byToken{base},
		hedge.WithEndpoints(
			hedge.Endpoint{URL: near.URL},
			hedge.Endpoint{URL: far.URL, Cost: far.price, Prepare: far.prepare}),
		hedge.WithRoute("POST /v1/chat/completions", hedge.Policy{
			Hedgeable:     true, // although these are POSTs: a second answer costs money, and nothing else
			FirstByte:     true, // which byToken delivers with the first token
			BudgetPercent: 25,   // at a cost of three, eight hedges for a hundred prompts
		}),
		hedge.WithBudgetPercent(25),
		hedge.WithMaxHedges(1),
		hedge.WithMaxHedgesPerSecond(perHour/hour.Seconds()))
	without, with = new(report), new(report)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var next atomic.Int64
	for range workers {
		wg.Go(func() {
			for prompt := int(next.Add(1) - 1); prompt < prompts; prompt = int(next.Add(1) - 1) {
				a, err1 := ask(base, alone, prompt)
				b, err2 := ask(hedged, near, prompt)
				mu.Lock()
				without.first, with.first = append(without.first, a), append(with.first, b)
				err = errors.Join(err, err1, err2)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	without.end(alone)
	with.end(near, far)
	with.snapshot = hedged.Snapshot()
	return without, with, err
}

// end adds what the providers charge once all answers have ended.
func (r *report) end(all ...*provider) {
	slices.Sort(r.first)
	for _, p := range all {
		p.Close() // waits for losers
		r.models, r.prices, r.bills = append(r.models, p.model), append(r.prices, p.price), append(r.bills, p.charged())
	}
}

// prepare makes a request for the first provider one for p: with its key, and the name of its model.
func (p *provider) prepare(r *http.Request) error {
	r.Header.Set("Authorization", "Bearer "+p.key)
	var body map[string]json.RawMessage // numbers and the rest stay as they are written
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return err
	}
	body["model"], _ = json.Marshal(p.model)
	changed, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
	return nil
}

// ask asks a prompt and reads the answer to its end. It returns how long the first token took. All tokens must be
// of one provider, in order.
func ask(rt http.RoundTripper, p *provider, prompt int) (first time.Duration, err error) {
	body, err := json.Marshal(question{Model: p.model, Stream: true, User: prompt,
		Messages: []message{{"user", "How do I make the slowest calls faster?"}}})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequest("POST", p.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = http.Header{"Authorization": {"Bearer " + p.key}, "Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
	start := time.Now()
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	lines, model, tokens := bufio.NewScanner(resp.Body), "", 0
	for lines.Scan() {
		data, _ := strings.CutPrefix(lines.Text(), "data: ")
		var e event
		if json.Unmarshal([]byte(data), &e) != nil || len(e.Choices) == 0 || e.Choices[0].Delta.Content == "" {
			continue
		}
		if tokens == 0 {
			first = time.Since(start).Round(100 * time.Microsecond)
			model, _, _ = strings.Cut(e.Choices[0].Delta.Content, ":")
		}
		if want := fmt.Sprintf("%s:%d ", model, tokens); e.Choices[0].Delta.Content != want {
			return 0, fmt.Errorf("prompt %d: token %q is not %q", prompt, e.Choices[0].Delta.Content, want)
		}
		tokens++
	}
	if tokens != answerTokens {
		return 0, fmt.Errorf("prompt %d: %d tokens: %w", prompt, tokens, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
	return first, nil
}
