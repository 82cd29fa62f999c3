package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

const (
	answerTokens = 20                     // of each answer
	each         = 2 * time.Millisecond   // between two tokens
	stall        = 800 * time.Millisecond // before the first token
	stallEvery   = 20                     // prompts, one stalls at a provider that stalls
)

// A provider answers POST /v1/chat/completions with streams, as OpenAI does. It has a key and a model of its own, and charges for each
// token of a prompt, and for each token of an answer until the client closes it.
type provider struct {
	*httptest.Server
	key, model string
	price      int // of a token
	first      time.Duration
	stalls     bool

	mu   sync.Mutex // guards the fields below
	bill bill
}

// A bill is what a provider charges.
type bill struct {
	Answers, Tokens    int // that the client has read to the end
	Closed, LostTokens int // that it has closed before, and their tokens
}

// open starts a provider.
func open(p *provider) *provider {
	p.Server = httptest.NewServer(http.HandlerFunc(p.complete))
	return p
}

// charged returns the bill.
func (p *provider) charged() bill {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bill
}

// A question is the body of a request. User is the number of the prompt, which says whether its answer stalls.
type question struct {
	Model    string    `json:"model"`
	Stream   bool      `json:"stream"`
	User     int       `json:"user,string"`
	Messages []message `json:"messages"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (p *provider) complete(w http.ResponseWriter, r *http.Request) {
	var q question
	switch err := json.NewDecoder(r.Body).Decode(&q); {
	case r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions":
		http.Error(w, `{"error":{"message":"not found"}}`, http.StatusNotFound)
		return
	case r.Header.Get("Authorization") != "Bearer "+p.key:
		http.Error(w, `{"error":{"message":"incorrect API key"}}`, http.StatusUnauthorized)
		return
	case err != nil || !q.Stream:
		http.Error(w, `{"error":{"message":"no stream is asked for"}}`, http.StatusBadRequest)
		return
	case q.Model != p.model:
		http.Error(w, `{"error":{"message":"the model does not exist"}}`, http.StatusNotFound)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // after its end, the server notices that the client is gone
	tokens := 0
	for _, m := range q.Messages {
		tokens += len(strings.Fields(m.Content))
	}
	w.Header().Set("Content-Type", "text/event-stream")
	written, whole := p.write(w, r, q.User)
	p.mu.Lock()
	defer p.mu.Unlock()
	if tokens += written; whole {
		p.bill.Answers++
		p.bill.Tokens += tokens
	} else {
		p.bill.Closed++
		p.bill.LostTokens += tokens
	}
}

// write writes an answer. It returns how many tokens the provider has made, and whether the client has waited for all of them.
func (p *provider) write(w http.ResponseWriter, r *http.Request, prompt int) (tokens int, whole bool) {
	flush := http.NewResponseController(w).Flush
	fmt.Fprintf(w, "data: %s\n\n", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`)
	_ = flush()
	wait := p.first + time.Duration(prompt%7)*time.Millisecond
	if p.stalls && prompt%stallEvery == stallEvery/2 {
		wait = stall
		switch prompt / stallEvery % 3 { // what comes before the first token
		case 1:
			_, _ = io.WriteString(w, ": PROCESSING\n\n")
		case 2:
			_, _ = io.WriteString(w, "event: keep-alive\ndata: {}\n\n")
		}
		_ = flush()
	}
	for ; tokens < answerTokens; tokens++ {
		select {
		case <-time.After(wait):
		case <-r.Context().Done(): // another provider was faster: nothing more is made
			return tokens, false
		}
		fmt.Fprintf(w, "data: {\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s:%d \"}}]}\n\n", p.model, p.model, tokens)
		_ = flush()
		wait = each
	}
	_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	_ = flush()
	return tokens, true
}
