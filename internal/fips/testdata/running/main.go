// Command running prints the module that it runs in.
package main

import (
	"encoding/json"
	"os"

	"github.com/nightwarrant/nightwarrant/internal/fips"
)

func main() {
	m, err := fips.Running()
	if err != nil {
		panic(err)
	}
	said := struct {
		fips.Module
		Refusal string `json:"refusal"`
	}{m, m.Refusal()}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
}
