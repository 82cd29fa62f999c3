package cachelab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/netsim"
)

// A server is a running contender: a DNS server process, the connections of its clients, and its measurements.
type server struct {
	name     string
	scenario scenario
	host     *netsim.Host
	process  *os.Process
	stop     func()
	progress func(int)

	queries          [][]byte       // one for each name in the cache
	conns            chan *dns.Conn // idle connections
	calls            lab.Recorder
	asked            int // queries
	cpu              time.Duration
	connectionMemory float64 // bytes
}

// cachedNames is the number of names that clients ask for.
const cachedNames = 100

// manyConnections is the number of connections from which their memory is measured.
const manyConnections = 1000

// prepare makes the server ready for measurements. It waits until the server answers, fills the server's cache, opens
// the client connections of the scenario, and measures the memory of a connection.
func (s *server) prepare() error {
	for i := range cachedNames {
		m := new(dns.Msg)
		m.SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeA)
		m.Id = uint16(i)
		query, err := m.Pack()
		if err != nil {
			return err
		}
		s.queries = append(s.queries, query)
	}
	conn, err := s.openConnection()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		if err = exchangeQuery(conn, s.queries[0], time.Second); err == nil || time.Now().After(deadline) {
			break
		}
		_ = conn.Close()
		if conn, err = s.openConnection(); err != nil {
			return err
		}
	}
	for _, query := range s.queries {
		if err == nil {
			err = exchangeQuery(conn, query, timeout)
		}
	}
	_ = conn.Close()
	if err != nil {
		return err
	}
	before := s.residentMemory()
	s.conns = make(chan *dns.Conn, max(s.scenario.connections, 1))
	for range s.scenario.connections {
		conn, err := s.openConnection()
		if err != nil {
			return err
		}
		s.conns <- conn
		if err := exchangeQuery(conn, s.queries[0], timeout); err != nil {
			return fmt.Errorf("connection %d of %d: %w", len(s.conns), s.scenario.connections, err)
		}
	}
	if s.scenario.connections >= manyConnections {
		s.connectionMemory = (s.residentMemory() - before) / float64(s.scenario.connections)
	}
	return nil
}

// openConnection opens a TCP connection to the server, or a UDP socket if the scenario uses UDP.
func (s *server) openConnection() (*dns.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := s.host.DialContext(ctx, s.scenario.network, "127.0.0.1:53")
	return &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}, err
}

// exchangeQuery sends a query over conn, and waits for the answer for at most the duration wait. It returns an error
// unless the answer has exactly one record.
func exchangeQuery(conn *dns.Conn, query []byte, wait time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := conn.Write(query); err != nil {
		return err
	}
	const header = 12
	buffer := make([]byte, dns.MinMsgSize)
	n, err := conn.Read(buffer)
	switch {
	case err != nil:
		return err
	case n < header || !bytes.Equal(buffer[:2], query[:2]):
		return errors.New("wrong response")
	case buffer[3]&0xf != dns.RcodeSuccess || buffer[6] != 0 || buffer[7] != 1:
		return fmt.Errorf("wrong answer: %s, %d records", dns.RcodeToString[int(buffer[3]&0xf)], buffer[7])
	}
	return nil
}

// measureRound sends the given number of queries, several at a time. It records their latencies and the processor time
// that the server used for them. It returns an error if the processor time is unknown.
func (s *server) measureRound(ctx context.Context, queries int) error {
	before, known := cputime.RunningThreads(s.process.Pid)
	start, first := time.Now(), s.asked
	s.asked += lab.Load{Workers: workers}.Send(ctx, queries, func(i int) {
		begin := time.Now()
		err := s.sendQuery(s.queries[i%len(s.queries)])
		call := latency.Call{Start: begin.Sub(start), Latency: time.Since(begin), Index: int32(first + i)}
		if err != nil {
			call.Winner = -1
		}
		s.calls.Add(call)
		s.progress(1)
	})
	after, stillKnown := cputime.RunningThreads(s.process.Pid)
	if !known || !stillKnown {
		return fmt.Errorf("cachelab: the processor time of %s is unknown", s.name)
	}
	s.cpu += after - before
	return nil
}

// sendQuery sends a query to the server and waits for the response. It uses the connection that has been idle for
// longest, and opens a new connection in place of one that fails. If the scenario keeps no connections open, each query
// has a new connection.
func (s *server) sendQuery(query []byte) error {
	if s.scenario.connections == 0 {
		conn, err := s.openConnection()
		if err != nil {
			return err
		}
		defer conn.Close()
		return exchangeQuery(conn, query, timeout)
	}
	conn := <-s.conns
	err := exchangeQuery(conn, query, timeout)
	if err != nil {
		_ = conn.Close()
		if fresh, dialErr := s.openConnection(); dialErr == nil {
			conn = fresh
		}
	}
	s.conns <- conn
	return err
}

// residentMemory returns the resident memory of the server process in bytes, or 0 if it is unknown.
func (s *server) residentMemory() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.process.Pid))
	fields := bytes.Fields(text)
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(string(fields[1]), 64)
	return pages * float64(os.Getpagesize())
}

// toRow returns the measurements of the server as a row of results.
func (s *server) toRow() Row {
	calls := s.calls.SortedCalls()
	return Row{Row: lab.Row{Contender: s.name, Calls: calls, Asked: s.asked, CPU: s.cpu}, ConnectionMemory: s.connectionMemory}
}

// close closes the connections and stops the server.
func (s *server) close() {
	for len(s.conns) > 0 {
		_ = (<-s.conns).Close()
	}
	if s.stop != nil {
		s.stop()
	}
}
