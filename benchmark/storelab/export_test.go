package storelab

import (
	"math/rand/v2"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
)

// PredictFirstRequest returns the times of the first request for a whole range: the delay of its first byte, and the
// duration of its body after that.
func PredictFirstRequest(name string, seed uint64, read int64) (firstByte, rest time.Duration) {
	sc, _ := lab.FindByName("scenario", scenarios, name)
	b := &responseBody{store: &objectStore{scenario: sc}, off: read * ReadSize, size: ReadSize, interval: chunkInterval, stallAt: -1}
	firstByte = b.drawFaults(rand.New(rand.NewPCG(seed, uint64(read)*(ReadSize/faultBlockSize)<<8)))
	rest = time.Duration(ReadSize/chunkSize-1) * b.interval
	if b.stallAt >= 0 {
		rest += faultDelay
	}
	return firstByte, rest
}

var (
	FillBytes  = fillContent
	CheckBytes = checkContent
)
