/* A PKCS#11 library that is SoftHSM's, except where a file beside its settings says otherwise: faults that no software
 * token has by itself. NIGHTWARRANT_TEST_SHIM is the directory of those files. For tests only. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pkcs11go.h"

static CK_FUNCTION_LIST list;
static CK_FUNCTION_LIST_PTR softhsm;

static FILE *control(const char *name, const char *mode)
{
	char path[4096];
	const char *dir = getenv("NIGHTWARRANT_TEST_SHIM");
	if (dir == NULL || snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
		return NULL;
	return fopen(path, mode);
}

/* said is the number in a file, or -1. */
static long said(const char *name)
{
	long n = -1;
	FILE *f = control(name, "r");
	if (f == NULL)
		return -1;
	if (fscanf(f, "%li", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

/* sign takes `slow` milliseconds, does not come back while there is `hang`, fails with `fail`, and is wrong with `lie`. */
static CK_RV sign(CK_SESSION_HANDLE s, CK_BYTE_PTR data, CK_ULONG n, CK_BYTE_PTR out, CK_ULONG_PTR m)
{
	CK_RV rv;
	if (out != NULL) {
		long slow = said("slow");
		if (slow > 0)
			usleep((useconds_t)slow * 1000);
		while (said("hang") >= 0)
			usleep(5000);
	}
	rv = softhsm->C_Sign(s, data, n, out, m);
	if (out != NULL && said("fail") >= 0)
		return (CK_RV)said("fail");
	if (out != NULL && rv == CKR_OK && said("lie") >= 0)
		out[0] ^= 1;
	return rv;
}

static CK_RV login(CK_SESSION_HANDLE s, CK_USER_TYPE user, CK_UTF8CHAR_PTR pin, CK_ULONG n)
{
	FILE *f = control("logins", "a");
	if (f != NULL) {
		fputc('x', f);
		fclose(f);
	}
	return softhsm->C_Login(s, user, pin, n);
}

static CK_RV token_info(CK_SLOT_ID slot, CK_TOKEN_INFO_PTR info)
{
	CK_RV rv = softhsm->C_GetTokenInfo(slot, info);
	if (said("flags") > 0)
		info->flags |= (CK_FLAGS)said("flags");
	if (said("most") >= 0)
		info->ulMaxSessionCount = (CK_ULONG)said("most");
	return rv;
}

static CK_RV open_session(CK_SLOT_ID slot, CK_FLAGS flags, CK_VOID_PTR app, CK_NOTIFY notify, CK_SESSION_HANDLE_PTR s)
{
	static long n;
	long room = said("room");
	if (room >= 0 && __sync_fetch_and_add(&n, 1) >= room)
		return CKR_SESSION_COUNT;
	return softhsm->C_OpenSession(slot, flags, app, notify, s);
}

static CK_RV attribute(CK_SESSION_HANDLE s, CK_OBJECT_HANDLE o, CK_ATTRIBUTE_PTR a, CK_ULONG n)
{
	long fail = said("blind");
	return fail > 0 ? (CK_RV)fail : softhsm->C_GetAttributeValue(s, o, a, n);
}

CK_RV C_GetFunctionList(CK_FUNCTION_LIST_PTR_PTR out)
{
	CK_C_GetFunctionList get;
	CK_RV rv;
	void *library = dlopen(SOFTHSM, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL || (get = (CK_C_GetFunctionList)dlsym(library, "C_GetFunctionList")) == NULL)
		return CKR_GENERAL_ERROR;
	if ((rv = get(&softhsm)) != CKR_OK)
		return rv;
	memcpy(&list, softhsm, sizeof list);
	list.C_Sign = sign;
	list.C_Login = login;
	list.C_GetTokenInfo = token_info;
	list.C_OpenSession = open_session;
	list.C_GetAttributeValue = attribute;
	*out = &list;
	return CKR_OK;
}
