package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const fipsAuthority = "fips: required\n" + goodAuthority

func TestFIPSIsRequiredOrNotThere(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"off", "on", "true", "Required", "preferred", "required "} {
		require.ErrorContains(t, Parse("f", []byte("fips: \""+value+"\"\n"+goodAuthority), &Authority{}, noEnv), "f line 1: fips must be required, or not be there", value)
	}
	for _, document := range []Document{&Authority{}, &Scheduler{}, &Worker{}, &PostgresGuard{}, &HTTPGuard{}, &ModelGuard{}} {
		required, is := document.(interface{ FIPSRequired() bool })
		require.True(t, is)
		assert.False(t, required.FIPSRequired())
	}
}

func TestAnAuthorityInFIPS(t *testing.T) {
	t.Parallel()
	require.EqualError(t, Parse("f", []byte(fipsAuthority), &Authority{}, noEnv),
		"f line 9: keys.host.socket is missing, and fips is required: KEY_LOCAL_FORBIDDEN_IN_FIPS")
	hosted := strings.Replace(fipsAuthority, "keys:\n", "keys:\n  host: {socket: /run/keyhost.sock}\n", 1)
	require.EqualError(t, Parse("f", []byte(hosted), &Authority{}, noEnv),
		"f line 9: keys.provenance is missing, and fips is required: PROVENANCE_MISSING")
}

func TestADatabaseInFIPS(t *testing.T) {
	t.Parallel()
	given := func(url string) (Database, error) {
		d := Database{DatabaseURL: Secret(url)}
		err := d.inFIPS(FIPS{Mode: "required"})
		return d, err
	}
	d, err := given("postgres://u:h%20sh@db/n?sslmode=verify-full")
	require.NoError(t, err)
	assert.Equal(t, "postgres://u:h%20sh@db/n?require_auth=scram-sha-256&sslmode=verify-full", d.DatabaseURL.Reveal())
	_, err = given("postgres://u:hush@db/n?require_auth=scram-sha-256")
	require.NoError(t, err)
	for _, url := range []string{"postgres://u:hush@db/n?require_auth=md5", "postgres://u:hush@db/n?require_auth=!none", "postgres://u:hush@db/n?require_auth=scram-sha-256,md5"} {
		_, err = given(url)
		require.ErrorContains(t, err, "DEP_NON_APPROVED_ALGORITHM", url)
		assert.NotContains(t, err.Error(), "hush")
	}
	_, err = given("host=db user=u password=hush require_auth=md5")
	require.ErrorContains(t, err, "must be a postgres:// URL")
	d = Database{DatabaseURL: "host=db"}
	require.NoError(t, d.inFIPS(FIPS{}))
	assert.Equal(t, "host=db", d.DatabaseURL.Reveal(), "elsewhere nothing is asked")
}

func TestTLSNeedsBothFiles(t *testing.T) {
	t.Parallel()
	for _, half := range []string{"tls: {certificate_file: /a}\n", "tls: {key_file: /a}\n"} {
		require.ErrorContains(t, Parse("f", []byte(half+goodAuthority), &Authority{}, noEnv), "tls needs both")
	}
	var a Authority
	require.NoError(t, Parse("f", []byte("tls: {certificate_file: /a, key_file: /b}\n"+goodAuthority), &a, noEnv))
	assert.Equal(t, TLS{"/a", "/b"}, a.TLS)
}
