package capability

import (
	"errors"
	"net/netip"
	"strings"
)

var errHTU = errors.New("capability: not an absolute http or https URL")

// NormalizeHTU gives the form in which an htu is compared (RFC 9449 §4.3, RFC 3986 §6.2.2 and §6.2.3): without query
// and fragment, scheme and host in lower case, no default port, percent-encodings in upper case and unreserved
// characters decoded, dot segments removed, an empty path as "/". A trailing slash, a double slash, "%2F" and the
// case of the path all stay, as the router tells them apart too.
func NormalizeHTU(s string) (string, error) { return normalize(s, true) }

// normalize refuses dot segments on request: the router redirects plain ones and takes encoded ones for names, so that
// the URL of a request that has some is not the one it would be normalized to.
func normalize(s string, dots bool) (string, error) {
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }); i >= 0 {
		return "", errHTU
	}
	s, _, _ = strings.Cut(s, "#")
	s, _, _ = strings.Cut(s, "?")
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return "", errHTU
	}
	authority, path := rest, "/"
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	scheme = strings.ToLower(scheme)
	authority, ok = normalAuthority(scheme, authority)
	if !ok {
		return "", errHTU
	}
	path, ok = normalPath(path, dots)
	if !ok {
		return "", errHTU
	}
	return scheme + "://" + authority + path, nil
}

// normalAuthority has no user information by its alphabet.
func normalAuthority(scheme, s string) (string, bool) {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, ']') {
		host, port = s[:i], s[i+1:]
	}
	if !isHost(host) || !isPort(port) {
		return "", false
	}
	host = strings.ToLower(host)
	switch {
	case scheme != "http" && scheme != "https":
		return "", false
	case port == "", scheme == "https" && port == "443", scheme == "http" && port == "80":
		return host, true
	}
	return host + ":" + port, true
}

func isHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		return ok && err == nil && ip.Is6() && ip.Zone() == ""
	}
	for i := range len(s) {
		if class[s[i]]&classUnreserved == 0 {
			return false
		}
	}
	return s != ""
}

func isPort(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) <= 5
}

func normalPath(s string, dots bool) (string, bool) {
	plain := true
	for i := range len(s) {
		switch c := s[i]; {
		case c == '%', c == '.':
			plain = false
		case class[c]&classPath == 0:
			return "", false
		}
	}
	if plain {
		return s, true
	}
	s, ok := normalEscapes(s)
	if !ok {
		return "", false
	}
	short := removeDots(s)
	return short, dots || short == s
}

func normalEscapes(s string) (string, bool) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		high, low := hexDigit(s[i+1]), hexDigit(s[i+2])
		if high > 15 || low > 15 {
			return "", false
		}
		if c := high<<4 | low; class[c]&classUnreserved != 0 {
			out = append(out, c)
		} else {
			const digits = "0123456789ABCDEF"
			out = append(out, '%', digits[high], digits[low])
		}
		i += 2
	}
	return string(out), true
}

func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 0xff
}

// removeDots is RFC 3986 §5.2.4 for a path that begins with "/".
func removeDots(s string) string {
	segments := strings.Split(s[1:], "/")
	kept := segments[:0]
	for i, segment := range segments {
		last := i == len(segments)-1
		switch segment {
		case ".":
		case "..":
			kept = kept[:max(len(kept)-1, 0)]
		default:
			kept = append(kept, segment)
			continue
		}
		if last {
			kept = append(kept, "")
		}
	}
	return "/" + strings.Join(kept, "/")
}
