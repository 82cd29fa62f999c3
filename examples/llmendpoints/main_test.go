package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEachAnswerIsOneProvidersAndIsPaidOnce asserts what holds however slow the machine is. That each answer is whole, and of one
// provider, is an error of compare if it is not; so is a request with the key or the model of the other provider.
func TestEachAnswerIsOneProvidersAndIsPaidOnce(t *testing.T) {
	const prompts = 200
	without, with, err := compare(prompts)
	require.NoError(t, err)
	perPrompt := without.bills[0].Tokens / prompts
	assert.Greater(t, perPrompt, answerTokens, "the prompt is charged as well")
	assert.Equal(t, bill{Answers: prompts, Tokens: perPrompt * prompts}, without.bills[0])
	near, far := with.bills[0], with.bills[1]
	assert.Equal(t, prompts, near.Answers+far.Answers)
	assert.Equal(t, perPrompt*prompts, near.Tokens+far.Tokens)
	if median := without.first[prompts/2]; median < 100*time.Millisecond { // the first token takes 20 ms if the machine has time
		assert.Positive(t, far.Answers, "a stalled prompt is answered by the second provider")
	}
	sent := int(with.snapshot.Stats.HedgesSent)
	assert.LessOrEqual(t, near.Closed+far.Closed, sent, "who loses is a hedge, or a primary that a hedge has beaten")
	const spares = 2 * 50 // what two keys begin with: a quarter of the prompts of two seconds, at 100 per second
	assert.LessOrEqual(t, 3*sent, prompts/4+spares, "the budget holds with the cost")
}
