package dnshedge

import (
	"bufio"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// savedServer is what is saved of a server. The names of its fields are part of the
// format.
type savedServer struct {
	Server        string
	Answers, Path []time.Duration // quantiles, evenly spaced
	SRTT          float64         // ns
	Shake         float64         // ns that a handshake takes
}

const savedQuantiles = 64

// Save writes the cache, if there is one, and the times that were learned of the
// servers, so that a restarted program begins where this one ended.
func (c *Client) Save(w io.Writer) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if err := cmp.Or(c.Cache, new(Cache)).Save(w); err != nil {
		return err
	}
	return core.export(w)
}

// Load adds what Save wrote. Servers that the Client does not know are left out.
func (c *Client) Load(r io.Reader) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	in := bufio.NewReader(r)
	if err := cmp.Or(c.Cache, new(Cache)).Load(in); err != nil {
		return err
	}
	return core.learn(in)
}

// export writes the times that were learned of the servers.
func (c *core) export(w io.Writer) error {
	out := bufio.NewWriter(w)
	c.mu.Lock()
	var all []savedServer
	for _, s := range c.servers {
		all = append(all, s.saved())
	}
	c.mu.Unlock()
	if err := errors.Join(gob.NewEncoder(out).Encode(all), out.Flush()); err != nil {
		return fmt.Errorf("dnshedge: save times: %w", err)
	}
	return nil
}

// learn adds the times that export wrote.
func (c *core) learn(r io.Reader) error {
	var all []savedServer
	if err := gob.NewDecoder(r).Decode(&all); err != nil {
		return fmt.Errorf("dnshedge: load times: %w", err)
	}
	if _, err := c.upstreams(); err != nil { // adds the system's servers to those that are known
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range all {
		if s := c.servers[l.Server]; s != nil {
			s.restore(l)
		}
	}
	return nil
}

// saved returns what is to be saved.
func (s *upstreamState) saved() savedServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := savedServer{Server: s.name, SRTT: s.srtt, Shake: s.handshake}
	for i := range savedQuantiles {
		q := (float64(i) + 0.5) / savedQuantiles
		if d, ok := s.answers.Quantile(q); ok {
			l.Answers = append(l.Answers, d)
		}
		if d, ok := s.path.Quantile(q); ok {
			l.Path = append(l.Path, d)
		}
	}
	return l
}

// restore adds what was saved.
func (s *upstreamState) restore(l savedServer) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range l.Answers {
		s.answers.Add(now, d)
		s.sent, s.got = s.sent+1, s.got+1
	}
	for _, d := range l.Path {
		s.path.Add(now, d)
	}
	if l.SRTT > 0 {
		s.srtt = l.SRTT
	}
	if l.Shake > 0 {
		s.handshake = l.Shake
	}
	s.updateDelays()
}

// A saved cache is cacheMagic, and then savedAnswers, encoded by encoding/gob. The
// last one is empty.
const cacheMagic = "hedge dns cache 1\n"

type savedAnswer struct {
	Key    string
	Wire   []byte
	Stored time.Time
	TTL    time.Duration
	Codes  []uint16 // extended errors
	Texts  []string
}

// Save writes all answers that are still kept, but no failures. Other goroutines may
// use the cache meanwhile.
func (c *Cache) Save(w io.Writer) error {
	c.init()
	out := bufio.NewWriter(w)
	if _, err := out.WriteString(cacheMagic); err != nil {
		return fmt.Errorf("dnshedge: save cache: %w", err)
	}
	enc := gob.NewEncoder(out)
	now := time.Now()
	for k, e := range c.store.All() {
		if e.fails > 0 || now.Sub(e.stored) >= e.ttl+c.staleTime() {
			continue
		}
		s := savedAnswer{Key: k, Wire: e.Packed(), Stored: e.stored, TTL: e.ttl}
		for _, x := range e.EDE {
			s.Codes, s.Texts = append(s.Codes, x.Code), append(s.Texts, x.Text)
		}
		if err := enc.Encode(s); err != nil {
			return fmt.Errorf("dnshedge: save cache: %w", err)
		}
	}
	if err := errors.Join(enc.Encode(savedAnswer{}), out.Flush()); err != nil {
		return fmt.Errorf("dnshedge: save cache: %w", err)
	}
	return nil
}

// Load adds the answers that Save wrote. The time that has passed since then counts
// against the TTLs. If it reads something that Save does not write, it returns an
// error; the answers before that remain added.
func (c *Cache) Load(r io.Reader) error {
	in, ok := r.(*bufio.Reader) // it must not be read beyond the cache
	if !ok {
		in = bufio.NewReader(r)
	}
	c.init()
	magic := make([]byte, len(cacheMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != cacheMagic {
		return fmt.Errorf("dnshedge: load cache: not a saved cache of this version: begins with %q", magic)
	}
	dec := gob.NewDecoder(in)
	now := time.Now()
	for {
		var s savedAnswer
		if err := dec.Decode(&s); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("dnshedge: load cache: %w", err)
		}
		if s.Key == "" {
			return nil
		}
		e, err := s.entry(orDefault(c.MaxTTL, defaultMaxTTL))
		if err != nil {
			return fmt.Errorf("dnshedge: load cache: entry %q: %w", s.Key, err)
		}
		if age := now.Sub(e.stored); age >= 0 && age < e.ttl+c.staleTime() {
			c.store.SetIfAbsent(s.Key, e)
		}
	}
}

// entry returns the entry of a saved answer. The limit bounds its TTL, because the
// clock may have been set back.
func (s *savedAnswer) entry(limit time.Duration) (*entry, error) {
	a, err := wire.ParseAnswer(s.Wire, nil)
	if err != nil {
		return nil, err
	}
	if len(s.Codes) != len(s.Texts) {
		return nil, errors.New("malformed")
	}
	q, err := wire.NewQuery(a.Msg)
	if err != nil {
		return nil, err
	}
	if own := q.Key(); len(s.Key) != len(own) || s.Key[:len(q.Name)] != own[:len(q.Name)] {
		return nil, fmt.Errorf("holds an answer for %s", a.Msg.Question[0].Name)
	}
	for i, code := range s.Codes {
		a.EDE = append(a.EDE, wire.EDE{Code: code, Text: s.Texts[i]})
	}
	if _, err := a.Seal(nil); err != nil {
		return nil, err
	}
	return &entry{Answer: a, stored: s.Stored, ttl: min(s.TTL, limit)}, nil
}
