package authority

import (
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// pageRows is how many rows a page has at most.
const pageRows = 30

// place is where a page begins: below id, in a part of the list. Lists whose rows
// stand in two orders, such as what waits before what is over, have two parts.
type place struct {
	part, id int64
}

// top is where a list begins.
var top = place{id: math.MaxInt64}

// paging is a list as one caller sees it. Its cursors are good for him and it only:
// each page is authorised by itself, and a cursor grants nothing.
type paging struct {
	a     *Authority
	scope [32]byte
}

const domainPaging = "nightwarrant/paging/v1"

// paging names a list by all that narrows it.
func (a *Authority) paging(m Actor, query ...string) paging {
	member := m.Member()
	text, _ := json.Marshal(query) // strings always can
	return paging{a, canonical.Digest(domainPaging, member[:], text)}
}

// open reads the cursor of a page before; an empty one is the top.
func (p paging) open(cursor string) (place, error) {
	if cursor == "" {
		return top, nil
	}
	raw, err := p.a.Keys().Cursors().Open(p.scope, cursor)
	if err != nil {
		return place{}, api.Refusef(api.InvalidRequest, "The cursor is not one that a page before has given.")
	}
	return place{int64(binary.BigEndian.Uint64(raw[:8])), int64(binary.BigEndian.Uint64(raw[8:]))}, nil
}

// seal makes the cursor of what follows.
func (p paging) seal(at place) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(at.part))
	binary.BigEndian.PutUint64(raw[8:], uint64(at.id))
	return p.a.Keys().Cursors().Seal(p.scope, raw)
}

// row is an item with its place.
type row[T any] struct {
	id   int64
	item T
}

func items[T any](rows []row[T]) []T {
	out := make([]T, len(rows))
	for i, r := range rows {
		out[i] = r.item
	}
	return out
}

// pageOf makes a page of a list with one part. A full one has a next.
func pageOf[T any](p paging, rows []row[T]) api.Page[T] {
	page := api.Page[T]{Items: items(rows)}
	if len(rows) == pageRows {
		page.Next = p.seal(place{id: rows[len(rows)-1].id})
	}
	return page
}

// inParts reads a page of a list with two parts: when the first is over before the page
// is full, the second goes on.
func inParts[T any](p paging, from place, read func(part, before int64, limit int) ([]row[T], error)) (page api.Page[T], err error) {
	all := make([]row[T], 0, pageRows)
	for part := from.part; part < 2 && len(all) < pageRows; part++ {
		rows, err := read(part, from.id, pageRows-len(all))
		if err != nil {
			return page, err
		}
		all = append(all, rows...)
		if len(all) == pageRows {
			page.Next = p.seal(place{part, rows[len(rows)-1].id})
		}
		from.id = top.id
	}
	page.Items = items(all)
	return page, nil
}
