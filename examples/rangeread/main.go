// Rangeread reads the footer of a file and then some of its columns, as a reader of Parquet does, from a server of files of which
// some answers are late and some bodies stop: once as it is, and once hedged.
//
//	go run ./examples/rangeread
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/http"
	"slices"
	"time"

	"github.com/gohedge/hedge/rangeread"
)

const files = 150

func main() {
	log.SetFlags(0)
	server := newServer()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

	for _, way := range []struct {
		name    string
		options rangeread.Options
	}{
		{"plain", rangeread.Options{BudgetPercent: rangeread.NoBudget}},
		{"hedged", rangeread.Options{}},
	} {
		bucket := rangeread.NewStore(way.options)
		var took []time.Duration
		for i := range files {
			object := bucket.Open(fetch(client, fmt.Sprintf("%s/%d.table", server.URL, i)))
			start := time.Now()
			if err := readTable(context.Background(), object); err != nil {
				log.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		client.CloseIdleConnections()
		slices.Sort(took)
		at := func(percent int) time.Duration { return took[files*percent/100].Round(100 * time.Microsecond) }
		fmt.Printf("%-7s p50 %6v   p90 %8v   p99 %8v\n", way.name, at(50), at(90), at(99))
		s := bucket.Stats()
		fmt.Printf("        %d ranges, %d requests; %d late first bytes and %d stalled bodies were hedged; %.1f %% more bytes asked for\n",
			s.Ranges, s.Requests, s.FirstByteHedges, s.StallHedges, 100*float64(s.BytesHedged)/float64(s.BytesAsked))
	}
}

// readTable reads the footer of a table, which says where the columns are, and then every second column.
func readTable(ctx context.Context, object *rangeread.Reader) error {
	size, err := object.Size(ctx)
	if err != nil {
		return err
	}
	footer := make([]byte, footerSize)
	if _, err := object.ReadAtContext(ctx, footer, size-footerSize); err != nil {
		return err
	}
	column := make([]byte, columnSize)
	for i := 0; i < columns; i += 2 {
		off := int64(binary.LittleEndian.Uint64(footer[8*i:]))
		if _, err := object.ReadAtContext(ctx, column, off); err != nil {
			return err
		}
		if column[0] != byte(i) || column[columnSize-1] != byte(i) {
			return fmt.Errorf("column %d is not what was written", i)
		}
	}
	return nil
}
