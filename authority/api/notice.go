package api

// NoticeSettings is how a member is told of what happens by mail. A decision that
// waits for them is always told at once.
type NoticeSettings struct {
	Daily *int `json:"daily,omitempty"` // one mail a day, at this hour of UTC, from 0 to 23; none: each thing at once
}
