package upstream

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// never are addresses that no list opens: of this machine's own link, of groups, and those at which clouds hand out
// their secrets.
var never = prefixes(
	"0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", // RFC 6890; 255.255.255.255 is in the last
	"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", // metadata of Alibaba, Azure and Oracle
	"::/128", "fe80::/10", "ff00::/8", "fd00:ec2::254/128", "fd20:ce::254/128", // the last two: metadata of AWS and Google
)

// private are addresses that a list must open (RFC 6890 and the IANA registries of special addresses).
var private = prefixes(
	"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
	"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// global is where public addresses of IPv6 are; NAT64, mapped and other translations are not.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func within(ip netip.Addr, all []netip.Prefix) bool {
	for _, p := range all {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// Private lists what may be reached although it is not public. The zero Private
// lists nothing.
type Private struct {
	ranges []netip.Prefix
	hosts  map[string]bool // host:port
}

// ParsePrivate reads a list of ranges such as 10.1.0.0/16 and of single
// destinations such as api.internal:8443 or [fd00::1]:443.
func ParsePrivate(list []string) (Private, error) {
	p := Private{hosts: map[string]bool{}}
	for _, one := range list {
		if strings.Contains(one, "/") {
			r, err := netip.ParsePrefix(one)
			if err != nil || r.Masked() != r {
				return Private{}, fmt.Errorf("%.80q is not a range of addresses", one)
			}
			p.ranges = append(p.ranges, r)
			continue
		}
		host, port, err := net.SplitHostPort(one)
		if err != nil || host == "" || port == "" || strings.ToLower(host) != host {
			return Private{}, fmt.Errorf("%.80q is neither a range of addresses nor a host in lower case with its port", one)
		}
		p.hosts[net.JoinHostPort(host, port)] = true
	}
	return p, nil
}

// allows tells whether an address to which a host resolved may be dialed, and whether it is a listed one.
func (p Private) allows(ip netip.Addr, host, port string) (listed, ok bool) {
	if ip.Zone() != "" || ip.Is4In6() || within(ip, never) {
		return false, false
	}
	listed = p.hosts[net.JoinHostPort(host, port)] || within(ip, p.ranges)
	public := (ip.Is4() || global.Contains(ip)) && !within(ip, private)
	return listed, listed || public
}
