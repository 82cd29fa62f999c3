package dnssec

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const maxAnchors = 1 << 20 // maximum size of a file with trust anchors, in bytes

// ReadAnchors reads trust anchors, for Trust.Anchors. r must contain IANA's root-anchors.xml (RFC 9718), or a zone file
// that has only DS and DNSKEY records. The maximum size is 1 MiB.
//
// It skips the anchors of root-anchors.xml that are not valid at the current time. The error is not nil if the file is
// invalid, contains an unusable anchor, or has no anchor that is valid now.
func ReadAnchors(r io.Reader) ([]dns.RR, error) {
	return readAnchors(r, time.Now())
}

// readAnchors implements ReadAnchors. It skips anchors that are not valid at the time now.
func readAnchors(r io.Reader, now time.Time) ([]dns.RR, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAnchors+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("dnssec: anchors: %w", err)
	case len(b) > maxAnchors:
		return nil, errors.New("dnssec: anchors: file is larger than 1 MiB")
	}
	read := parseAnchorZoneFile
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("<")) {
		read = parseAnchorsXML
	}
	all, err := read(b, now)
	if err == nil && len(all) == 0 {
		err = errors.New("there is none")
	}
	for _, rr := range all {
		if _, bad := validate.TrustAnchors(rr); bad != nil && err == nil {
			err = fmt.Errorf("%s is none", rr)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("dnssec: anchors: %w", err)
	}
	return all, nil
}

// parseAnchorsXML parses root-anchors.xml and returns, as DS records, the anchors that are valid at the time now.
func parseAnchorsXML(b []byte, now time.Time) (all []dns.RR, err error) {
	var file struct {
		XMLName xml.Name `xml:"TrustAnchor"`
		Zone    string   `xml:"Zone"`
		Digests []struct {
			From      string `xml:"validFrom,attr"`
			Until     string `xml:"validUntil,attr"`
			KeyTag    uint16 `xml:"KeyTag"`
			Algorithm uint8  `xml:"Algorithm"`
			Type      uint8  `xml:"DigestType"`
			Digest    string `xml:"Digest"`
		} `xml:"KeyDigest"`
	}
	if err := xml.Unmarshal(b, &file); err != nil {
		return nil, err
	}
	for _, d := range file.Digests {
		var from, until time.Time
		if d.From != "" {
			if from, err = time.Parse(time.RFC3339, d.From); err != nil {
				return nil, err
			}
		}
		if d.Until != "" {
			if until, err = time.Parse(time.RFC3339, d.Until); err != nil {
				return nil, err
			}
		}
		if now.Before(from) || !until.IsZero() && !now.Before(until) {
			continue
		}
		rr, err := dns.NewRR(fmt.Sprintf("%s 3600 IN DS %d %d %d %s", dns.Fqdn(file.Zone), d.KeyTag, d.Algorithm, d.Type, d.Digest))
		if err != nil {
			return nil, err
		}
		all = append(all, rr)
	}
	return all, nil
}

// parseAnchorZoneFile returns the trust anchors in a zone file. The error is not nil if the syntax is invalid, or if there is a
// record of a type other than DS and DNSKEY. The time is ignored, because these records have no validity period.
func parseAnchorZoneFile(b []byte, _ time.Time) (all []dns.RR, err error) {
	p := dns.NewZoneParser(bufio.NewReader(bytes.NewReader(b)), ".", "")
	p.SetDefaultTTL(3600)
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		switch rr.(type) {
		case *dns.DS, *dns.DNSKEY:
			all = append(all, rr)
		default:
			return nil, fmt.Errorf("%s is neither DS nor DNSKEY", rr)
		}
	}
	return all, p.Err()
}
