package cachelab

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/cputime"
	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A server is one of the compared DNS servers while it runs, with the connections of its clients.
type server struct {
	name     string
	scenario scenario
	host     *netsim.Host
	process  *os.Process
	progress func(int)

	queries [][]byte       // one for each name in the cache
	conns   chan *dns.Conn // idle connections
	calls   lab.Recorder
	row     Row // results, without the calls
}

const (
	cachedNames     = 100  // number of names that clients ask for
	manyConnections = 1000 // least number of connections whose memory is measured
)

// warmUp waits until the server answers, and queries each name once, so that the server has all in its cache.
func (s *server) warmUp() error {
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
	_ = dnsserver.Retry(timeout, func() error { return s.exchangeOnce(s.queries[0], time.Second) })
	for _, query := range s.queries {
		if err := s.exchangeOnce(query, timeout); err != nil {
			return err
		}
	}
	return nil
}

// openConnections opens the client connections of the scenario. It sends queries over those that are already open, so that
// the server does not close them as idle. Its first call also measures the memory of a connection.
func (s *server) openConnections(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	first := s.scenario.connections >= manyConnections && s.row.ConnectionMemory == 0
	if first {
		_ = lab.SleepContext(ctx, time.Second) // until the connections of other contenders have ended
	}
	process, kernel := s.residentMemory(), kernelMemory()
	s.conns = make(chan *dns.Conn, max(s.scenario.connections, 1))
	lab.Load{Workers: workers}.Run(ctx, s.scenario.connections, func(i int) {
		conn, err := s.openConnection()
		if err == nil {
			if err = sendQueryOver(conn, s.queries[0], timeout); err != nil {
				_ = conn.Close()
			}
		}
		if err != nil {
			cancel(fmt.Errorf("%s: connection %d of %d: %w", s.name, i, s.scenario.connections, err))
			return
		}
		s.conns <- conn
		for range 6 {
			_ = s.sendQuery(s.queries[0])
		}
	})
	if n := float64(s.scenario.connections); first {
		s.row.ConnectionMemory = (s.residentMemory() - process) / n
		s.row.KernelMemory = (kernelMemory() - kernel) / n / 2 // the client's end is on the same machine
	}
	return context.Cause(ctx)
}

func (s *server) closeConnections() {
	for len(s.conns) > 0 {
		_ = (<-s.conns).Close()
	}
}

// openConnection opens a UDP socket or a TCP connection to the server. Over TLS, the first query begins with the handshake.
func (s *server) openConnection() (*dns.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := s.host.DialContext(ctx, strings.Replace(s.scenario.network, "tls", "tcp", 1), dnsserver.ListenAddress)
	if err == nil && s.scenario.network == "tls" {
		_, trusting := dnstest.Certificate()
		config := trusting.Clone()
		config.ServerName = dnstest.Name
		conn = tls.Client(conn, config)
	}
	return &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}, err
}

func (s *server) exchangeOnce(query []byte, wait time.Duration) error {
	conn, err := s.openConnection()
	if err != nil {
		return err
	}
	defer conn.Close()
	return sendQueryOver(conn, query, wait)
}

// sendQueryOver sends a query over conn and waits for the answer, at most for the duration wait. The answer must have
// exactly one record.
func sendQueryOver(conn *dns.Conn, query []byte, wait time.Duration) error {
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

// measureRound measures the server with a part of the run's queries: it opens the connections, sends that number of queries,
// and closes the connections. It records the latencies and the processor time of the server.
func (s *server) measureRound(ctx context.Context, queries int) error {
	defer s.closeConnections()
	if err := s.openConnections(ctx); err != nil {
		return err
	}
	before, known := cputime.LiveThreads(s.process.Pid)
	start, first := time.Now(), s.row.Asked
	s.row.Asked += lab.Load{Workers: workers}.Run(ctx, queries, func(i int) {
		s.calls.Measure(ctx, start, first+i, func() error { return s.sendQuery(s.queries[i%len(s.queries)]) })
		s.progress(1)
	})
	s.row.Elapsed += time.Since(start)
	after, stillKnown := cputime.LiveThreads(s.process.Pid)
	if !known || !stillKnown {
		return fmt.Errorf("the processor time of %s is unknown", s.name)
	}
	s.row.CPU += after - before
	return nil
}

// sendQuery sends a query over the connection that has been idle for longest, or over a new one if the scenario keeps
// none open. It replaces a connection that fails.
func (s *server) sendQuery(query []byte) error {
	if s.scenario.connections == 0 {
		return s.exchangeOnce(query, timeout)
	}
	conn := <-s.conns
	err := sendQueryOver(conn, query, timeout)
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

// kernelMemory returns the memory in bytes that the kernel of this machine uses for its objects, such as sockets. It returns
// 0 if that is unknown, for example without root.
func kernelMemory() (total float64) {
	text, _ := os.ReadFile("/proc/slabinfo")
	for line := range strings.Lines(string(text)) {
		var name string
		var active, all, size float64
		if n, _ := fmt.Sscan(line, &name, &active, &all, &size); n == 4 {
			total += active * size
		}
	}
	return total
}
