package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestOpenAI(t *testing.T) {
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, token := range []string{"We ", "have ", "three ", "lamps."} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", token)
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	s.late = true // the header comes at once
	base := base(t)
	url := s.URL + "/v1"
	params := openai.ChatCompletionNewParams{
		Model:    "local",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("How many lamps have we?")},
		Seed:     openai.Int(17), Temperature: openai.Float(0),
	}
	ask := func(c openai.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			var answer strings.Builder
			stream := c.Chat.Completions.NewStreaming(ctx, params)
			defer stream.Close()
			for stream.Next() {
				for _, choice := range stream.Current().Choices {
					answer.WriteString(choice.Delta.Content)
				}
			}
			return answer.String(), stream.Err()
		}
	}
	plain := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("key"), option.WithHTTPClient(&http.Client{Transport: base}))

	t.Run("by default", func(t *testing.T) {
		client := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("key"), option.WithHTTPClient(&http.Client{Transport: hedge.New(base)}))
		once(t, s, func(ctx context.Context) error {
			_, err := ask(client)(ctx)
			return err
		})
	})
	t.Run("this call", func(t *testing.T) {
		transport := hedge.New(base, hedge.WithFirstByte())
		client := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("key"),
			option.WithHTTPClient(&http.Client{Transport: transport}))

		hedged := func(ctx context.Context) (string, error) {
			ctx = hedge.AllowHedging(ctx)
			return ask(client)(ctx)
		}
		gone := s.gone.Load()
		assert.Equal(t, "We have three lamps.", same(t, s, transport, ask(plain), hedged))
		// The loser is cancelled and generates no more tokens.
		require.Eventually(t, func() bool { return s.gone.Load() == gone+1 }, limit, time.Millisecond)
	})
	t.Run("this route", func(t *testing.T) {
		transport := hedge.New(base,
			hedge.WithRoute("POST /v1/chat/completions", hedge.Policy{Hedgeable: true, FirstByte: true, BudgetPercent: 2}))
		client := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("key"),
			option.WithHTTPClient(&http.Client{Transport: transport}))

		assert.Equal(t, "We have three lamps.", same(t, s, transport, ask(plain), ask(client)))
	})
}
