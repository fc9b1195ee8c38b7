package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/internal/freeport"
)

const patience = 300 * time.Millisecond

// A hostile server costs one connection, bounded bytes and bounded time, and nothing of what it says is in the error.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	endless := func(head, piece string) func(c net.Conn, r *http.Request) {
		return func(c net.Conn, _ *http.Request) {
			_, err := io.WriteString(c, head)
			for err == nil {
				_, err = io.WriteString(c, piece)
			}
		}
	}
	text := func(s string) func(c net.Conn, r *http.Request) {
		return func(c net.Conn, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, s)
		}
	}
	const head = "HTTP/1.1 200 OK\r\n"
	compressed := bomb(t)
	for name, s := range map[string]struct {
		does func(c net.Conn, r *http.Request)
		want Category
	}{
		"never answers":       {func(c net.Conn, _ *http.Request) { _, _ = io.Copy(io.Discard, c) }, Timeout},
		"answers half a head": {func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, head); _, _ = io.Copy(io.Discard, c) }, Timeout},
		"answers half a body": {func(c net.Conn, _ *http.Request) {
			_, _ = io.WriteString(c, head+"Content-Length: 9\r\n\r\nabc")
			_, _ = io.Copy(io.Discard, c)
		}, Timeout},
		"drips its head":                 {drip(head + strings.Repeat("X-A: b\r\n", 1000)), Timeout},
		"drips its body":                 {drip(head + "Content-Length: 9000\r\n\r\n" + strings.Repeat("a", 9000)), Timeout},
		"closes at once":                 {func(net.Conn, *http.Request) {}, Broken},
		"resets":                         {func(c net.Conn, _ *http.Request) { _ = c.(*net.TCPConn).SetLinger(0) }, Broken},
		"a shorter body than it says":    {text(head + "Content-Length: 100\r\n\r\nhush"), Broken},
		"a chunk that ends":              {text(head + "Transfer-Encoding: chunked\r\n\r\n64\r\nhush"), Broken},
		"a chunk of no length":           {text(head + "Transfer-Encoding: chunked\r\n\r\nhush\r\n"), Malformed},
		"an endless body":                {endless(head+"\r\n", strings.Repeat("hush", 1000)), Malformed},
		"endless chunks":                 {endless(head+"Transfer-Encoding: chunked\r\n\r\n", "4\r\nhush\r\n"), Malformed},
		"an endless head":                {endless(head, "X-Hush: hush\r\n"), Malformed},
		"an endless line":                {endless(head+"X: ", "hush"), Malformed},
		"interim answers without end":    {endless("", "HTTP/1.1 103 Early Hints\r\nLink: hush\r\n\r\n"), Malformed},
		"a body that is declared large":  {text(head + "Content-Length: 65537\r\n\r\nhush"), Malformed},
		"a body that is larger":          {text(head + "\r\n" + strings.Repeat("h", 64<<10+1)), Malformed},
		"two lengths":                    {text(head + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nhush!"), Malformed},
		"a negative length":              {text(head + "Content-Length: -4\r\n\r\nhush"), Malformed},
		"not HTTP":                       {text("SSH-2.0-hush\r\n\r\n"), Malformed},
		"no status":                      {text("HTTP/1.1 hush OK\r\n\r\n"), Malformed},
		"another protocol":               {text("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: hush\r\n\r\n"), Malformed},
		"a status of no class":           {text("HTTP/1.1 999 hush\r\nContent-Length: 0\r\n\r\n"), Malformed},
		"a header that is two":           {text(head + "X-A: b\rX-Hush: hush\r\n\r\n"), Malformed},
		"a header without a name":        {text(head + ": hush\r\n\r\n"), Malformed},
		"a bomb":                         {text(head + "Content-Encoding: gzip\r\n\r\n" + compressed), Malformed},
		"a bomb in capitals":             {text(head + "Content-Encoding: GZIP\r\n\r\n" + compressed), Malformed},
		"two encodings":                  {text(head + "Content-Encoding: identity\r\nContent-Encoding: gzip\r\n\r\n" + compressed), Malformed},
		"an encoding that nobody knows":  {text(head + "Content-Encoding: hush\r\n\r\n"), Malformed},
		"a transfer that is compressed":  {text(head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), Malformed},
		"trailers without end":           {endless(head+"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\n", "X: hush\r\n"), Malformed},
		"an answer before the question":  {func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, "hush\r\n") }, Malformed},
		"a chunk with an endless remark": {endless(head+"Transfer-Encoding: chunked\r\n\r\n4;", "hush"), Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, within := serve(t, s.does), 30*time.Second
			if s.want == Timeout {
				within = patience
			}
			_, body, err := get(t, client(t, server), server.url, within)
			requireCategory(t, err, s.want)
			require.LessOrEqual(t, len(body), 64<<10)
			require.EqualValues(t, 1, server.conns.Load())
		})
	}
}

// drip writes a byte every tenth of what a caller has patience for.
func drip(text string) func(c net.Conn, r *http.Request) {
	return func(c net.Conn, _ *http.Request) {
		tick := time.NewTicker(patience / 10)
		defer tick.Stop()
		for i := range len(text) {
			<-tick.C
			if _, err := io.WriteString(c, text[i:i+1]); err != nil {
				return
			}
		}
	}
}

func bomb(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func TestMemoryIsFlat(t *testing.T) {
	piece := bytes.Repeat([]byte("x"), 1<<20)
	server := serve(t, func(c net.Conn, _ *http.Request) {
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		for err == nil {
			_, err = c.Write(piece)
		}
	})
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		_, _, err := get(t, client(t, server), server.url, 10*time.Second)
		requireCategory(t, err, Malformed)
	}
	runtime.ReadMemStats(&now)
	require.Less(t, now.TotalAlloc-before.TotalAlloc, uint64(20<<20))
}

func TestRedirectsAreAnswers(t *testing.T) {
	t.Parallel()
	elsewhere := says(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	for _, location := range []string{"http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/", elsewhere.url.String(), "//" + elsewhere.url.Host, "/other"} {
		server := says(t, "HTTP/1.1 307 Temporary Redirect\r\nLocation: "+location+"\r\nContent-Length: 0\r\n\r\n")
		status, _, err := get(t, client(t, server, elsewhere), server.url, time.Second)
		require.NoError(t, err)
		require.Equal(t, http.StatusTemporaryRedirect, status)
		require.EqualValues(t, 1, server.conns.Load())
		require.Zero(t, elsewhere.conns.Load())
	}
}

func TestOneConnectionIsForOneExchange(t *testing.T) {
	t.Parallel()
	server := says(t, "HTTP/1.1 204 No Content\r\n\r\n")
	conn, err := client(t, server).Connect(t.Context(), server.url)
	require.NoError(t, err)
	defer conn.Close()
	r := Request{Method: http.MethodGet, URL: server.url}
	_, err = conn.Exchange(t.Context(), r)
	require.NoError(t, err)
	_, err = conn.Exchange(t.Context(), r)
	require.Error(t, err)
	other, _ := url.Parse("http://other.example/")
	_, err = conn.Exchange(t.Context(), Request{Method: http.MethodGet, URL: other})
	require.Error(t, err)
	require.EqualValues(t, 1, server.conns.Load())
}

func TestNoProxyIsAsked(t *testing.T) {
	proxy := says(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.url.String())
	}
	server := says(t, "HTTP/1.1 204 No Content\r\n\r\n")
	status, _, err := get(t, client(t, server), server.url, time.Second)
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, status)
	require.Zero(t, proxy.conns.Load())
}

func TestWhatIsSent(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	server := serve(t, func(c net.Conn, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		got = r
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok")
	})
	status, answer, err := get(t, client(t, server), server.url, time.Second)
	require.NoError(t, err)
	require.Equal(t, 200, status)
	require.Equal(t, "ok", answer)
	require.Equal(t, `{"a":1}`, string(body))
	require.Equal(t, "/orders/7", got.RequestURI)
	require.Equal(t, server.url.Host, got.Host)
	require.Equal(t, http.Header{"Accept-Encoding": {"identity"}, "Authorization": {"Bearer hush"}, "Connection": {"close"}, "Content-Length": {"7"},
		"User-Agent": {"nightwarrant-guard"}}, got.Header)
}

func TestAHeaderCannotBeInjected(t *testing.T) {
	t.Parallel()
	server := says(t, "HTTP/1.1 204 No Content\r\n\r\n")
	for _, h := range []http.Header{{"X-A": {"b\r\nX-Admin: yes"}}, {"X-A\r\nX-Admin": {"yes"}}, {"X A": {"b"}}, {"X-A": {"b\x00"}}} {
		conn, err := client(t, server).Connect(t.Context(), server.url)
		require.NoError(t, err)
		_, err = conn.Exchange(t.Context(), Request{Method: http.MethodGet, URL: server.url, Header: h})
		require.Error(t, err)
		require.NoError(t, conn.Close())
	}
	_, err := newRequest(t.Context(), Request{Method: "GET /x HTTP/1.1\r\nX:", URL: server.url})
	require.Error(t, err)
}

func TestAddressesThatAreNotReached(t *testing.T) {
	t.Parallel()
	for _, host := range []string{
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1",
		"100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"[::1]", "[::]", "[fe80::1]", "[fe80::1%25eth0]", "[fc00::1]", "[fd00:ec2::254]", "[fd20:ce::254]", "[ff02::1]", "[fec0::1]", "[::ffff:127.0.0.1]", "[::ffff:8.8.8.8]",
		"[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[2001:db8::1]", "[100::1]", "[5f00::1]", "[3fff::1]",
	} {
		u, err := url.Parse("https://" + host + "/")
		require.NoError(t, err)
		_, err = New(Config{}).Connect(t.Context(), u)
		requireCategory(t, err, Forbidden)
	}
}

// Spellings that some resolvers take for an address are names, and what they resolve to is checked.
func TestNamesThatResolveElsewhere(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]string{
		"2130706433":               {"127.0.0.1"},
		"0x7f.1":                   {"127.0.0.1"},
		"0177.0.0.1":               {"127.0.0.1"},
		"localhost":                {"::1", "127.0.0.1"},
		"metadata.google.internal": {"169.254.169.254"},
		"mixed.example":            {"93.184.215.14", "10.0.0.1"},
		"mapped.example":           {"::ffff:169.254.169.254"},
		"scoped.example":           {"fe80::1%eth0"},
	} {
		c := New(Config{})
		c.resolver = &names{answers: [][]string{answer}}
		_, err := c.Connect(t.Context(), &url.URL{Scheme: "https", Host: name})
		requireCategory(t, err, Forbidden)
	}
	c := New(Config{})
	c.resolver = &names{}
	_, err := c.Connect(t.Context(), &url.URL{Scheme: "https", Host: "nowhere.example"})
	requireCategory(t, err, Unreachable)
}

// Whatever a name resolves to later, what is dialed is what was checked.
func TestRebinding(t *testing.T) {
	t.Parallel()
	server := says(t, "HTTP/1.1 204 No Content\r\n\r\n")
	private, err := ParsePrivate([]string{"127.0.0.1/32"})
	require.NoError(t, err)
	resolver := &names{answers: [][]string{{"127.0.0.1"}, {"169.254.169.254"}, {"127.0.0.2"}}}
	c := New(Config{Private: private})
	c.resolver = resolver
	u := &url.URL{Scheme: "http", Host: net.JoinHostPort("name.example", server.url.Port()), Path: "/"}
	conn, err := c.Connect(t.Context(), u)
	require.NoError(t, err)
	a, err := conn.Exchange(t.Context(), Request{Method: http.MethodGet, URL: u})
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, a.Status)
	require.NoError(t, conn.Close())
	require.EqualValues(t, 1, resolver.asked.Load())
	for range 2 {
		_, err = c.Connect(t.Context(), u)
		requireCategory(t, err, Forbidden)
	}
	require.EqualValues(t, 1, server.conns.Load())
}

func TestListedAddresses(t *testing.T) {
	t.Parallel()
	p, err := ParsePrivate([]string{"10.1.0.0/16", "169.254.0.0/16", "api.internal:8443", "[fd00::1]:443", "::/0"})
	require.NoError(t, err)
	for _, c := range []struct {
		ip, host, port string
		ok             bool
	}{
		{"10.1.2.3", "x", "443", true}, {"10.2.2.3", "x", "443", false}, {"10.2.2.3", "api.internal", "8443", true}, {"10.2.2.3", "api.internal", "443", false},
		{"127.0.0.1", "api.internal", "8443", true}, {"169.254.169.254", "api.internal", "8443", false}, {"169.254.169.254", "x", "443", false},
		{"fd00::1", "fd00::1", "443", true}, {"fd00:ec2::254", "x", "443", false}, {"93.184.215.14", "x", "443", true}, {"::ffff:10.1.2.3", "x", "443", false},
	} {
		_, ok := p.allows(netip.MustParseAddr(c.ip), c.host, c.port)
		require.Equal(t, c.ok, ok, c)
	}
	for _, bad := range []string{"", "10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "api.internal", ":443", "api.internal:", "API.internal:443", "fd00::1:443:"} {
		_, err := ParsePrivate([]string{bad})
		require.Error(t, err, bad)
	}
}

func TestPlainHTTPIsForListedAddresses(t *testing.T) {
	t.Parallel()
	c := New(Config{})
	c.resolver = &names{answers: [][]string{{"93.184.215.14"}}}
	_, err := c.Connect(t.Context(), &url.URL{Scheme: "http", Host: "public.example"})
	requireCategory(t, err, Forbidden)
	for _, u := range []string{"ftp://public.example/", "https://user@public.example/", "https:///x", "https://bücher.example/", "/x"} {
		parsed, err := url.Parse(u)
		require.NoError(t, err)
		_, err = New(Config{}).Connect(t.Context(), parsed)
		requireCategory(t, err, Forbidden)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	defer server.Close()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	private, err := ParsePrivate([]string{u.Host})
	require.NoError(t, err)
	_, err = New(Config{Private: private}).Connect(t.Context(), u)
	requireCategory(t, err, Unreachable) // nobody vouches for it

	roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	status, body, err := get(t, New(Config{Private: private, Roots: roots}), u, 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, 200, status)
	require.Equal(t, "HTTP/1.1", body)

	server.TLS.MaxVersion = 0x0302 // TLS 1.1
	_, err = New(Config{Private: private, Roots: roots}).Connect(t.Context(), u)
	requireCategory(t, err, Unreachable)
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	host, err := freeport.Address()
	require.NoError(t, err)
	private, err := ParsePrivate([]string{host})
	require.NoError(t, err)
	_, err = New(Config{Private: private}).Connect(t.Context(), &url.URL{Scheme: "http", Host: host})
	requireCategory(t, err, Unreachable)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = New(Config{Private: private}).Connect(ended, &url.URL{Scheme: "http", Host: host})
	requireCategory(t, err, Unreachable)
}

// No address of the special registries is reached unless it is listed.
func TestAddressProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		ip, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "ip"))
		_, ok := Private{}.allows(ip, "x", "443")
		if ok && (ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || ip.Is4In6()) {
			t.Fatalf("%s would be reached", ip)
		}
	})
}

func FuzzPrivate(f *testing.F) {
	for _, seed := range []string{"10.0.0.0/8", "api.internal:443", "[::1]:80", "::/0", "x/y"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePrivate([]string{text})
		if err != nil {
			return
		}
		for _, ip := range []string{"169.254.169.254", "fd00:ec2::254", "0.0.0.0", "ff02::1"} {
			if _, ok := p.allows(netip.MustParseAddr(ip), "x", "443"); ok {
				t.Fatal(fmt.Sprint(ip, " is reached with ", text))
			}
		}
	})
}
